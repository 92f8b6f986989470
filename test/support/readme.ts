import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';

/** A program of the README: its file name there, and its code as an ES module that Node.js runs. */
export interface ReadmeProgram {
  readonly name: string;
  readonly code: string;
}

/**
 * The programs of the README: its TypeScript blocks whose first line is a comment with a file name. They are compiled
 * as a user's compiler would, so that what is printed there is what is tested.
 */
export function readmePrograms(): ReadmeProgram[] {
  const text = readFileSync(fileURLToPath(new URL('../../README.md', import.meta.url)), 'utf8');
  return [...text.matchAll(/^```ts\n(\/\/ (\S+)\.ts\n[\s\S]*?)^```$/gm)].map(([, source, name]) => ({
    name: `${name}.mjs`,
    code: ts.transpileModule(source, {
      compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 },
    }).outputText,
  }));
}
