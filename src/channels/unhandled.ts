import { config } from 'rxjs';

/**
 * An error that a subscriber threw belongs to nobody on our side: it is reported as RxJS reports it, on a turn of its own,
 * so that delivery to the others goes on.
 */
export function reportUnhandled(error: unknown): void {
  setTimeout(() => {
    if (config.onUnhandledError !== null) config.onUnhandledError(error);
    else throw error;
  });
}
