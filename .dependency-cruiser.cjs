/**
 * The directions of src/: `cli, index -> channels, steering -> cluster, regions -> native -> addon`.
 * An import may skip layers on its way down, never go up or sideways. The C++ side has the same rule: each
 * native folder is a CMake target, and scripts/native-layers.mjs reads its #include lines.
 */
const only = (name, from, allowed, comment) => ({
  name,
  severity: 'error',
  comment,
  from: { path: from },
  to: { path: '^src/', pathNot: allowed },
});

/** @type {import('dependency-cruiser').IConfiguration} */
module.exports = {
  forbidden: [
    only(
      'native-is-the-bottom',
      '^src/native/',
      ['^src/native/', '^src/(errors|suggest)\\.ts$'],
      'src/native declares and loads the addon; it knows nothing above it.',
    ),
    only(
      'errors-know-nobody',
      '^src/(errors|suggest)\\.ts$',
      ['^src/errors\\.ts$'],
      'The code table, and how a wrong name is answered, are used by every layer; they import none.',
    ),
    only(
      'cluster-looks-down',
      '^src/cluster/',
      ['^src/(cluster|native)/', '^src/(errors|suggest)\\.ts$'],
      'Members, presence and control connections carry the bodies of channels without knowing them.',
    ),
    only(
      'regions-look-down',
      '^src/regions/',
      ['^src/(regions|native)/', '^src/(errors|suggest)\\.ts$'],
      'Regions stand beside the cluster, on the native binding.',
    ),
    only(
      'channels-look-down',
      '^src/channels/',
      ['^src/(channels|cluster|regions|native)/', '^src/(errors|suggest|turn)\\.ts$'],
      'Channels know neither the command line nor steering.',
    ),
    only(
      'steering-looks-down',
      '^src/steering/',
      ['^src/(steering|cluster|regions|native)/', '^src/(errors|suggest|turn)\\.ts$'],
      'Rules are data and pure functions; they know no channels.',
    ),
    {
      name: 'only-native-loads-the-addon',
      severity: 'error',
      comment: 'One file loads the binary and states its types (src/native/load.ts).',
      from: { path: '^(src|examples)/', pathNot: '^src/native/' },
      to: { path: '(\\.node$|^prebuilds/|^build/|node_modules/detect-libc/)' },
    },
    {
      name: 'rxjs-where-streams-are',
      severity: 'error',
      comment: 'RxJS lives in src/channels, and in a file that offers a public stream.',
      from: {
        path: '^src/',
        pathNot: ['^src/channels/', '^src/index\\.ts$', '^src/steering/(stream|datagrams)\\.ts$'],
      },
      to: { path: 'node_modules/rxjs/' },
    },
    {
      name: 'no-cycles',
      severity: 'error',
      comment: 'A cycle means that two files are one, or that a piece of both wants to be a third.',
      from: { path: '^src/' },
      to: { circular: true },
    },
    {
      name: 'no-dev-dependencies',
      severity: 'error',
      comment: 'What the package imports must be installed with it.',
      from: { path: '^src/' },
      to: { dependencyTypes: ['npm-dev'], dependencyTypesNot: ['npm-peer', 'type-only'] },
    },
    {
      name: 'resolvable',
      severity: 'error',
      comment: 'The import leads nowhere.',
      from: { path: '^src/' },
      to: { couldNotResolve: true, pathNot: ['\\.node$', 'prebuilds/', 'build/'] },
    },
    {
      name: 'not-from-tests',
      severity: 'error',
      comment: 'The package never imports its tests, examples, benchmarks or scripts.',
      from: { path: '^src/' },
      to: { path: '^(test|examples|bench|scripts)/' },
    },
  ],
  options: {
    doNotFollow: { path: 'node_modules' },
    tsPreCompilationDeps: true,
    tsConfig: { fileName: 'tsconfig.json' },
    enhancedResolveOptions: {
      exportsFields: ['exports'],
      conditionNames: ['import', 'require', 'node', 'default', 'types'],
    },
  },
};
