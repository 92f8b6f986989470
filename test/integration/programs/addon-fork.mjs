/**
 * Two members in a process that forks (without exec) a child, which ends at once through exit() and its handlers. Prints
 * what has become of the parent's members.
 *   addon-fork.mjs FOLDER LIBRARY
 */
import { readdirSync } from 'node:fs';
import { Endpoint, link } from '../../support/addon.mjs';

const [folder, library] = process.argv.slice(2);
const a = new Endpoint(folder);
const b = new Endpoint(folder);
const [toB, toA] = link(a, b);
const talk = () => {
  a.send([toB], 100);
  a.flush();
  b.poll();
};
for (let i = 0; i < 10; i++) talk();
const before = readdirSync(folder).length;
try {
  process.dlopen({ exports: {} }, library);
} catch {
  // It is no addon: its constructor has done what is wanted.
}
for (let i = 0; i < 10; i++) talk();
const c = new Endpoint(folder);
const [toC, atC] = link(a, c);
a.send([toC, toB], 100);
a.flush();
b.poll();
c.poll();
process.stdout.write(
  `${JSON.stringify({
    child: process.env.FORKED_CHILD_STATUS,
    files: readdirSync(folder).length - before > 0,
    received: [b.received.get(toA).count, c.received.get(atC)?.count],
    disorder: a.disorder + b.disorder,
  })}\n`,
);
for (const each of [a, b, c]) each.close();
