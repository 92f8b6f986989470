import { readdirSync, readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

/** What the pages' examples speak of without having made it. */
const GIVEN = `
import { custom, join, struct, type Member, type Region, type RegionOffer } from 'millrace';
declare const member: Member, publisher: Member, subscriber: Member;
declare const region: Region, into: Region, offer: RegionOffer, handle: string;
declare const signal: AbortSignal, onProgress: (bytes: number) => void;
declare const render: (bytes: Uint8Array) => void, histogram: (bytes: Uint8Array) => void, kept: Uint8Array[];
declare const encode: (value: unknown) => Uint8Array, decode: (bytes: Uint8Array) => unknown;
type Tick = { bid: number; ask: number };
export {};
{
`;

test('the TypeScript of README and docs compiles as it stands', { timeout: 60_000 }, () => {
  const path = (name: string) => fileURLToPath(new URL(`../../../${name}`, import.meta.url));
  const pages = ['README.md', ...readdirSync(path('docs')).map((name) => `docs/${name}`)];
  const files = new Map<string, string>();
  for (const page of pages.filter((name) => name.endsWith('.md'))) {
    const blocks = readFileSync(path(page), 'utf8').matchAll(/^```ts\n([\s\S]*?)^```$/gm);
    for (const [, block] of blocks) {
      // Three dots stand for what the reader puts there.
      const code = block!.replaceAll(/=> \.\.\./g, '=> undefined').replaceAll('[...]', '[]');
      const own = code.includes('import ');
      files.set(path(`src/${page.replaceAll('/', '-')}-${files.size}.ts`), own ? code : `${GIVEN}${code}}\n`);
    }
  }
  expect(files.size).toBeGreaterThan(8);

  const config = ts.readConfigFile(path('tsconfig.json'), ts.sys.readFile).config;
  const { options } = ts.parseJsonConfigFileContent(config, ts.sys, path('.'));
  // As a user's compiler sees a module; ours is CommonJS.
  const settings = {
    ...options,
    noEmit: true,
    module: ts.ModuleKind.ESNext,
    paths: { millrace: [path('src/index.ts')] },
  };
  settings.moduleResolution = ts.ModuleResolutionKind.Bundler;
  const host = ts.createCompilerHost(settings);
  const { getSourceFile, fileExists, readFile } = host;
  host.getSourceFile = (name, target) =>
    files.has(name) ? ts.createSourceFile(name, files.get(name)!, target) : getSourceFile(name, target);
  host.fileExists = (name) => files.has(name) || fileExists(name);
  host.readFile = (name) => files.get(name) ?? readFile(name);
  const program = ts.createProgram([...files.keys()], settings, host);
  const wrong = [...files.keys()].flatMap((name) =>
    [
      ...program.getSyntacticDiagnostics(program.getSourceFile(name)),
      ...program.getSemanticDiagnostics(program.getSourceFile(name)),
    ].map(
      ({ messageText, start = 0 }) =>
        `${name.split('/').at(-1)}: ${ts.flattenDiagnosticMessageText(messageText, ' ')} at ${files.get(name)!.slice(start, start + 60)}`,
    ),
  );
  expect(wrong).toEqual([]);
});
