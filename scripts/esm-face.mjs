/**
 * Writes the ESM face of the package, dist/index.mjs and dist/index.d.mts. There is one implementation, in CommonJS;
 * the face re-exports each name of it, so that a program that mixes `import` and `require` has one addon, one registry
 * and honest `instanceof`.
 *
 *   node scripts/esm-face.mjs
 */
import { writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { root, say } from './setup.mjs';

const dist = join(root, 'dist');
const names = Object.keys(createRequire(import.meta.url)(join(dist, 'index.js')))
  .filter((name) => name !== 'default' && name !== '__esModule')
  .sort();
if (names.length === 0) {
  say('dist/index.js exports nothing');
  process.exit(1);
}
const odd = names.filter((name) => !/^[A-Za-z_$][\w$]*$/.test(name));
if (odd.length > 0) {
  say(`these exports can't be named in an export declaration: ${odd.join(', ')}`);
  process.exit(1);
}

// Written by hand rather than `export * from`: Node.js would have to guess a CommonJS module's names.
const lines = [
  "import implementation from './index.js';",
  `export const { ${names.join(', ')} } = implementation;`,
  '',
];
writeFileSync(join(dist, 'index.mjs'), lines.join('\n'));
writeFileSync(join(dist, 'index.d.mts'), "export * from './index.js';\n");
say(`dist/index.mjs: ${names.length} names`);
