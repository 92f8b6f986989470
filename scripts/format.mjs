/** `npm run format`: lays out TypeScript, JavaScript, JSON (Biome) and C++ (clang-format 14) in place. */
import { bin, clangFormat, commandLine, run, say } from './setup.mjs';
import { nativeSources } from './suites/cpp.mjs';

commandLine('Usage: npm run format\nLays out all sources in place, with Biome and clang-format 14.');
const biome = await run(bin('biome'), ['check', '--write'], { show: true });
const formatter = clangFormat();
if (!formatter)
  say('clang-format 14 is not here, the C++ files stay as they are (apt-get install clang-format-14)');
const native = formatter ? await run(formatter, ['-i', ...nativeSources()], { show: true }) : { code: 0 };
process.exitCode = biome.code || native.code;
