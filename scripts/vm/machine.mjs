/** Boots the virtual machine and relays what the program in it prints. */
import { spawn } from 'node:child_process';
import { openSync } from 'node:fs';
import { createInterface } from 'node:readline';
import { which } from '../setup.mjs';

/**
 * Runs a program of this machine's file system in a virtual machine of its own, as root, with the RDMA device rxe0.
 * The file system is read-only underneath: what the program writes is in memory, and gone with the machine.
 * @param {{ kernel: string, initramfs: string }} image of prepareKernel()
 * @param {{ program: string, console: string, limitMs: number, onLine: (line: string) => void,
 *   onStart: (child: import('node:child_process').ChildProcess) => void }} options
 *   `console`: file for the kernel's log; `limitMs`: then the machine is switched off
 * @returns {Promise<{ code: number, timedOut: boolean, said: string }>} the program's exit code, or 1 when the machine
 *   ended without one; `said` is what QEMU itself printed
 */
export function boot({ kernel, initramfs }, { program, console: log, limitMs, onLine, onStart }) {
  const accel = process.env.MILLRACE_VM_ACCEL || 'tcg,thread=multi';
  const words = ['console=ttyS0', 'panic=-1', 'quiet', 'loglevel=4', 'mitigations=off'];
  words.push(`millrace.run=${program}`, `millrace.node=${process.execPath}`);
  const args = [
    ['-accel', accel],
    ['-cpu', accel.startsWith('kvm') ? 'host' : 'max'],
    ['-smp', '2'],
    ['-m', '1536'],
    ['-no-reboot'],
    ['-nodefaults'],
    ['-display', 'none'],
    ['-kernel', kernel],
    ['-initrd', initramfs],
    ['-append', words.join(' ')],
    ['-serial', `file:${log}`],
    ['-serial', 'stdio'],
    ['-fsdev', 'local,id=root,path=/,security_model=none,readonly=on,multidevs=remap'],
    ['-device', 'virtio-9p-pci,fsdev=root,mount_tag=root'],
    ['-netdev', 'user,id=net,restrict=on'],
    ['-device', 'virtio-net-pci,netdev=net,romfile='],
    ['-device', 'virtio-rng-pci'],
  ].flat();
  return new Promise((resolve) => {
    // The kernel's log exists from the start, so that a failure can show it.
    openSync(log, 'w');
    const child = spawn(which('qemu-system-x86_64'), args, { stdio: ['ignore', 'pipe', 'pipe'] });
    onStart(child);
    let code = 1;
    let timedOut = false;
    let said = '';
    const timer = setTimeout(() => {
      timedOut = true;
      child.kill('SIGKILL');
    }, limitMs);
    child.stderr.on('data', (chunk) => {
      said = (said + chunk).slice(-4096);
    });
    createInterface({ input: child.stdout }).on('line', (raw) => {
      const line = raw.replace(/\r$/, '');
      const end = /^@@exit (\d+)$/.exec(line);
      if (end) code = Number(end[1]);
      else onLine(line);
    });
    child.on('error', (error) => {
      said += error.message;
    });
    child.on('close', () => {
      clearTimeout(timer);
      resolve({ code: timedOut ? 1 : code, timedOut, said });
    });
  });
}
