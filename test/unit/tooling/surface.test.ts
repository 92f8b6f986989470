import { fileURLToPath } from 'node:url';
import ts from 'typescript';
import { expect, test } from 'vitest';

/**
 * What is public is what src/index.ts exports: a type that its declarations name, and that it does not export, could not be
 * written down by a user (`const event: StatusEvent` has an `AnyMillraceError`). Left out are what `@internal` strips, and:
 */
const INSIDE = new Map([
  ['Engine', "of Member's protected constructor"],
  ['ClusterPort', "of Member's protected constructor"],
  ['Member', "the one of channels/, which Member extends and which nobody's variable needs to be"],
  ['GAP_REASONS', 'the list behind GapReason'],
  ['FIELDS', 'the table behind FieldName'],
  ['FieldValue', 'a part of StructValue'],
]);

test('every type that the public declarations name is exported', { timeout: 60_000 }, () => {
  const path = (name: string) => fileURLToPath(new URL(`../../../${name}`, import.meta.url));
  const { options } = ts.parseJsonConfigFileContent(
    ts.readConfigFile(path('tsconfig.json'), ts.sys.readFile).config,
    ts.sys,
    path('.'),
  );
  const program = ts.createProgram([path('src/index.ts')], { ...options, noEmit: true });
  const checker = program.getTypeChecker();
  const real = (symbol: ts.Symbol | undefined) =>
    symbol !== undefined && (symbol.flags & ts.SymbolFlags.Alias) !== 0
      ? checker.getAliasedSymbol(symbol)
      : symbol;
  const index = checker.getSymbolAtLocation(program.getSourceFile(path('src/index.ts'))!)!;
  const exported = new Set(checker.getExportsOfModule(index).map((one) => real(one)!));
  const ours = (symbol: ts.Symbol) =>
    symbol.declarations?.some(
      (one) => one.getSourceFile().fileName.startsWith(path('src/')) && !ts.isTypeParameterDeclaration(one),
    ) === true;

  const hidden = new Set<string>();
  const look = (node: ts.Node): void => {
    // Bodies, values, what is private and what is stripped are in no declaration.
    if (ts.isBlock(node) || ts.isImportDeclaration(node)) return;
    if (ts.getJSDocTags(node).some(({ tagName }) => tagName.text === 'internal')) return;
    if (ts.canHaveModifiers(node) && node.modifiers?.some((one) => one.kind === ts.SyntaxKind.PrivateKeyword))
      return;
    if (ts.isClassElement(node) && node.name !== undefined && ts.isPrivateIdentifier(node.name)) return;
    const name = ts.isTypeReferenceNode(node)
      ? node.typeName
      : ts.isTypeQueryNode(node)
        ? node.exprName
        : ts.isExpressionWithTypeArguments(node)
          ? node.expression
          : undefined;
    const symbol = name === undefined ? undefined : real(checker.getSymbolAtLocation(name));
    if (symbol !== undefined && ours(symbol) && !exported.has(symbol)) hidden.add(symbol.name);
    ts.forEachChild(node, look);
  };
  expect(exported.size).toBeGreaterThan(60);
  for (const symbol of exported) symbol.declarations?.forEach(look);
  expect([...hidden].sort()).toEqual([...INSIDE.keys()].sort());
});
