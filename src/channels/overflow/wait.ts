import { DropNewest } from './drop-newest.js';

/**
 * A full queue refuses the publisher, who asks `accepts` first. If it pushes nevertheless, because the subscriber has used
 * up `maxWait`, the new message is dropped.
 */
export class Wait extends DropNewest {
  override readonly waits = true;

  override forgo(): boolean {
    return false;
  }
}
