import { type FSWatcher, lstatSync, watch as watchFolder } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { basename, dirname } from 'node:path';
import { fileError } from './file.js';
import { step, type WatchEvent, watching } from './watch-state.js';

/** How long nothing must happen to a file before it is read: editors write in several steps. */
const QUIET_MS = 50;

/** What a watcher tells. */
export interface WatchListener {
  /** The file has a new text. @returns whether it was taken */
  apply(text: string): boolean;
  /** The file cannot be read. */
  report(error: unknown): void;
}

/**
 * A file that is looked at whenever it changes. Its folder is watched, so that it may be replaced by another under its name,
 * as editors do, or be away for a while. Does not hold the event loop.
 */
export class FileWatch {
  private state;
  private timer: NodeJS.Timeout | undefined;
  private readonly watcher: FSWatcher;
  private closed = false;

  private constructor(
    readonly file: string,
    text: string,
    private readonly listener: WatchListener,
  ) {
    this.state = watching(text);
    // A link may lead to another folder (as in a Kubernetes volume), and then anything may mean a new text.
    const direct = !lstatSync(file).isSymbolicLink();
    const name = basename(file);
    this.watcher = watchFolder(dirname(file), { persistent: false }, (_event, changed) => {
      if (!direct || changed === null || changed === name) this.feed({ type: 'touched' });
    });
    this.watcher.on('error', (error) => this.listener.report(fileError(file, error)));
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
      const text = await readFile(file, 'utf8');
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
    this.watcher.close();
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
        readFile(this.file, 'utf8').then(
          (text) => this.feed({ type: 'read', text }),
          (cause) => {
            const error = fileError(this.file, cause);
            this.feed({ type: 'unreadable', why: error.message, error });
          },
        );
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
