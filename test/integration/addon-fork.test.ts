import { execFileSync, spawnSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { afterAll, expect, test } from 'vitest';
import { ownFabric } from '../support/addon.mjs';

const fabric = ownFabric();
afterAll(() => fabric.remove());

/** A library that forks when it is loaded, and waits for the child, which does `inChild`. */
function forker(inChild: string): string {
  const source = join(fabric.base, 'forker.c');
  const library = join(fabric.base, 'forker.so');
  writeFileSync(
    source,
    `#include <stdio.h>
     #include <stdlib.h>
     #include <sys/wait.h>
     #include <unistd.h>
     __attribute__((constructor)) static void start(void) {
       pid_t child = fork();
       if (child < 0) abort();
       if (child == 0) {
         alarm(30);
         ${inChild};
       }
       int status = 0;
       waitpid(child, &status, 0);
       char text[32];
       snprintf(text, sizeof text, "%d", status);
       setenv("FORKED_CHILD_STATUS", text, 1);
     }`,
  );
  execFileSync('cc', ['-shared', '-fPIC', '-o', library, source]);
  return library;
}

// Node.js's own handlers end in abort() in such a child; ours, and the device's, run before those. JavaScript ends at once
// there: V8 keeps its heap from the child (MADV_DONTFORK). So no call of ours is ever made in one.
test.each([
  ['with its exit handlers', 'exit(0)'],
  ['without', '_exit(0)'],
  ['by going on in JavaScript', 'return'],
])('a forked child that ends %s leaves its parent’s members alone', (_title, inChild) => {
  const library = forker(inChild);
  const program = join('test', 'integration', 'programs', 'addon-fork.mjs');
  const result = spawnSync(process.execPath, [program, fabric.folder, library], { encoding: 'utf8' });
  expect({ status: result.status, signal: result.signal, stderr: result.stderr }).toEqual({
    status: 0,
    signal: null,
    stderr: '',
  });
  expect(JSON.parse(result.stdout)).toEqual({
    child: expect.any(String),
    files: true,
    received: [21, 1],
    disorder: 0,
  });
  expect(fabric.leftovers()).toEqual(['forker.c', 'forker.so']);
});
