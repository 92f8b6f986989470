/**
 * Checks the directions of native/: `addon -> transport -> verbs -> base`, and `soft -> verbs, base` beside them.
 * CMake's targets say the same; this names the line, and covers headers that nothing compiles yet.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { root, say } from './setup.mjs';
import { nativeSources } from './suites/cpp.mjs';

/** What each folder may include. */
const MAY = {
  base: ['base'],
  verbs: ['base', 'verbs'],
  soft: ['base', 'verbs', 'soft'],
  dropin: ['base', 'verbs', 'dropin'],
  transport: ['base', 'verbs', 'transport'],
  addon: ['base', 'verbs', 'soft', 'transport', 'addon'],
};
/** The sources of verbs/ and dropin/ (no header) may name the software device's one function: there a device is chosen. */
const choosesDevice = (path, include) =>
  /^native\/(verbs|dropin)\/.*\.cc$/.test(path) && include === 'soft/provider.h';

const faults = [];
let lines = 0;
for (const path of nativeSources(['native'])) {
  const folder = path.split('/')[1];
  const text = readFileSync(join(root, path), 'utf8').split('\n');
  text.forEach((line, index) => {
    const include = /^\s*#\s*include\s*[<"]([^>"]+)[>"]/.exec(line)?.[1];
    if (include === undefined) return;
    lines += 1;
    const where = `${path}:${index + 1}`;
    const target = include.split('/')[0];
    if (target in MAY && !MAY[folder]?.includes(target) && !choosesDevice(path, include)) {
      faults.push(
        `${where}: ${folder}/ must not include ${include} (it may use: ${MAY[folder]?.join(', ')})`,
      );
    }
    if (/^(napi|node_api|node|uv)\b.*\.h$/.test(include) && folder !== 'addon') {
      faults.push(`${where}: ${include} belongs in native/addon alone`);
    }
    if (include === 'infiniband/verbs.h' && folder === 'base') faults.push(`${where}: base/ knows no verbs`);
    if (include.startsWith('../'))
      faults.push(`${where}: write includes from native/, as in "base/status.h"`);
  });
}
for (const fault of faults) say(fault);
say(`${lines} includes read, ${faults.length} against the direction`);
process.exitCode = faults.length > 0 ? 1 : 0;
