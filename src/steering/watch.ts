import { type FSWatcher, readlinkSync, realpathSync, watch as watchFolder } from 'node:fs';
import { readFile, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { fileError } from './file.js';
import { step, type WatchEvent, watching } from './watch-state.js';

/** How long nothing must happen to a file before it is read: editors write in several steps. */
const QUIET_MS = 50;
/** Links that are followed, as the kernel does. */
const MOST_LINKS = 40;

/** What a watcher tells. */
export interface WatchListener {
  /** The file has a new text. @returns whether it was taken */
  apply(text: string): boolean;
  /** The file cannot be read. */
  report(error: unknown): void;
}

/** Its text. What waits for a writer (a FIFO) is not read: it would hold a thread of the process for as long. */
async function textOf(file: string): Promise<string> {
  const kind = await stat(file);
  if (!kind.isFile() && !kind.isDirectory())
    throw Object.assign(new Error('it is no ordinary file'), { code: 'EINVAL', syscall: 'read' });
  return readFile(file, 'utf8');
}

/** The folders that a change of a file may show in: its own, and those of what it is a link to. */
function foldersOf(file: string): { folders: ReadonlySet<string>; linked: boolean } {
  const folders = new Set<string>();
  let at = file;
  for (let links = 0; links < MOST_LINKS; links++) {
    try {
      const folder = realpathSync(dirname(at));
      folders.add(folder);
      at = resolve(folder, readlinkSync(join(folder, basename(at))));
    } catch {
      break; // no link, or not there
    }
  }
  return { folders, linked: at !== file };
}

/**
 * A file that is looked at whenever it changes. Its folder is watched, so that it may be replaced by another under its name,
 * as editors do, or be away for a while; where it is a link, those of its targets, too. Does not hold the event loop.
 */
export class FileWatch {
  private state;
  private timer: NodeJS.Timeout | undefined;
  private readonly watchers = new Map<string, FSWatcher>();
  private linked = false;
  private closed = false;

  private constructor(
    readonly file: string,
    text: string,
    private readonly listener: WatchListener,
  ) {
    this.state = watching(text);
    this.follow();
  }

  /**
   * Reads a file, has `listener` take it, and looks at it from then on.
   * @throws MillraceError ERR_STEERING_FILE (rejects), or what `apply` throws
   */
  static async open(
    file: string,
    listener: WatchListener,
    first: (text: string) => void,
  ): Promise<FileWatch> {
    try {
      const text = await textOf(file);
      const watch = new FileWatch(file, text, listener);
      try {
        first(text);
      } catch (error) {
        watch.close();
        throw error;
      }
      // It may have changed before it was watched.
      watch.feed({ type: 'touched' });
      return watch;
    } catch (error) {
      throw (error as { syscall?: unknown }).syscall === undefined ? error : fileError(file, error);
    }
  }

  /** Ends it. Idempotent. */
  close(): void {
    this.closed = true;
    clearTimeout(this.timer);
    for (const watcher of this.watchers.values()) watcher.close();
  }

  /** Watches the folders that count now: what a link leads to changes. @throws what fs.watch() throws */
  private follow(): void {
    const { folders, linked } = foldersOf(this.file);
    this.linked = linked;
    const name = basename(this.file);
    for (const [folder, watcher] of this.watchers) {
      if (folders.has(folder)) continue;
      watcher.close();
      this.watchers.delete(folder);
    }
    for (const folder of folders) {
      if (this.watchers.has(folder)) continue;
      const watcher = watchFolder(folder, { persistent: false }, (_event, changed) => {
        // Behind a link anything may mean a new text (as in a Kubernetes volume, where a link to a folder is replaced).
        if (this.linked || changed === null || changed === name) this.feed({ type: 'touched' });
      });
      watcher.on('error', (error) => this.listener.report(fileError(this.file, error)));
      this.watchers.set(folder, watcher);
    }
  }

  /** Once more before it is read, so that no change of it is missed. */
  private read(): void {
    try {
      this.follow();
    } catch (error) {
      this.listener.report(fileError(this.file, error));
    }
    textOf(this.file).then(
      (text) => this.feed({ type: 'read', text }),
      (cause) => {
        const error = fileError(this.file, cause);
        this.feed({ type: 'unreadable', why: error.message, error });
      },
    );
  }

  private feed(event: WatchEvent): void {
    if (this.closed) return;
    const [state, effect] = step(this.state, event);
    this.state = state;
    switch (effect?.type) {
      case 'wait':
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.feed({ type: 'settled' }), QUIET_MS).unref();
        break;
      case 'read':
        this.read();
        break;
      case 'apply':
        this.feed({ type: 'applied', text: effect.text, ok: this.listener.apply(effect.text) });
        break;
      case 'report':
        this.listener.report(effect.error);
        break;
    }
  }
}
