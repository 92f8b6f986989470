"""Runs rdma-core's own tests (those that Debian ships with python3-pyverbs), each in a process of
its own with a fabric of its own and a deadline, and prints a JSON object a line for each:
{"id", "result": "pass" | "skip" | "fail", "reason", "ms"}.

    pyverbs_tests.py FOLDER DEADLINE_S common|all UID:GID|- [NAME...]

FOLDER holds the unpacked tests; "common" leaves out the modules for one vendor's devices; UID:GID
is whom they run as, if not who starts this; NAME... are parts of test ids. Everything is imported once, before the first fork; a forked child is as good
as a new process, since nothing of the device is open by then.
"""
import ctypes
import importlib
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
import types
import unittest


# Modules that ask for their vendor's device before anything else.
VENDORS = ('test_mlx5_', 'test_efa')


def load(folder, which):
    """The test cases of the chosen modules, in order. A module that can't be imported is one
    failing test."""
    sys.path.insert(0, folder)
    package = types.ModuleType('tests')
    package.__path__ = [folder]
    sys.modules['tests'] = package
    sys.argv[1:] = ['--port', '1']
    importlib.import_module('args_parser').parser.parse_args()
    cases = []

    def flatten(suite):
        for test in suite:
            if isinstance(test, unittest.TestSuite):
                flatten(test)
            else:
                cases.append(test)

    for name in sorted(os.listdir(folder)):
        module = name[:-3]
        if not name.startswith('test_') or not name.endswith('.py'):
            continue
        if which == 'common' and module.startswith(VENDORS):
            continue
        try:
            loaded = importlib.import_module('tests.' + module)
        except Exception:  # it says what is missing; the others go on
            print(json.dumps({'id': 'tests.' + module, 'result': 'fail', 'ms': 0,
                              'reason': traceback.format_exc()}), flush=True)
            continue
        flatten(unittest.defaultTestLoader.loadTestsFromModule(loaded))
    return cases


class Result(unittest.TestResult):
    """Keeps the first thing that went wrong, and the reason of a skip."""

    def __init__(self):
        super().__init__()
        self.said = None

    def say(self, result, reason):
        if self.said is None or self.said['result'] == 'skip':
            self.said = {'result': result, 'reason': reason}

    def addError(self, test, err):
        self.say('fail', self._exc_info_to_string(err, test))

    addFailure = addError

    def addSkip(self, test, reason):
        self.say('skip', reason)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.say('fail', self._exc_info_to_string(err, test))

    def addUnexpectedSuccess(self, test):
        self.say('fail', 'passed, and was expected to fail')


def become(user):
    """From here on an ordinary user's process, as if it had been started as one."""
    uid, gid = map(int, user.split(':'))
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)
    # The kernel closes the memory of who changes user to others of that user; exec would open it.
    PR_SET_DUMPABLE = 4
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


def in_child(test, write_end, output, shm, user):
    """The child's whole life up to its ordinary exit, which is part of the test: the device must
    leave its fabric."""
    os.setsid()
    if user != '-':
        os.chown(shm, *map(int, user.split(':')))
        become(user)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ['MILLRACE_SHM_DIR'] = shm
    result = Result()
    test.run(result)
    os.write(write_end, json.dumps(result.said or {'result': 'pass', 'reason': ''}).encode())
    os.close(write_end)


def wait_end(pid, deadline):
    """Waits for the child's end. Returns its wait status; None at the deadline."""
    fd = os.pidfd_open(pid)
    try:
        if not select.select([fd], [], [], max(0, deadline - time.monotonic()))[0]:
            return None
        return os.waitpid(pid, 0)[1]
    finally:
        os.close(fd)


def run(test, limit, user):
    """Forks, waits, and tells what happened. In the child it returns None."""
    shm = tempfile.mkdtemp(prefix='cf-', dir=os.environ['MILLRACE_SHM_DIR'])
    read_end, write_end = os.pipe()
    output = tempfile.TemporaryFile()
    began = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(read_end)
        in_child(test, write_end, output.fileno(), shm, user)
        return None
    os.close(write_end)
    status = wait_end(pid, began + limit)
    ms = round((time.monotonic() - began) * 1000)
    try:
        os.killpg(pid, signal.SIGKILL)  # whatever the test started and left
    except ProcessLookupError:
        pass
    if status is None:
        os.waitpid(pid, 0)
    said = b''
    while chunk := os.read(read_end, 65536):
        said += chunk
    os.close(read_end)
    output.seek(0)
    text = output.read()[-3000:].decode(errors='replace')
    output.close()
    left = os.listdir(shm)
    shutil.rmtree(shm, ignore_errors=True)
    if status is None:
        told = {'result': 'fail', 'reason': f'not over after {limit} s\n{text}'}
    elif status != 0 or not said:
        told = {'result': 'fail', 'reason': f'ended with wait status {status}\n{said.decode()}\n{text}'}
    else:
        told = json.loads(said)
        if left and told['result'] != 'fail':
            told = {'result': 'fail', 'reason': f'left behind in shared memory: {left}'}
    return {'id': test.id(), 'ms': ms, **told}


def main():
    folder, limit, which, user, *names = sys.argv[1:]
    for test in load(folder, which):
        if names and not any(name in test.id() for name in names):
            continue
        told = run(test, float(limit), user)
        if told is None:
            return
        print(json.dumps(told), flush=True)


main()
