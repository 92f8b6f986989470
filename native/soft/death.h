#pragma once

namespace millrace::soft {

class Process;
class PeerProcess;

/**
 * What the dead process had of ours: its rings into our CQs, also those never visited, are read up
 * to their tails; WQEs that it took and did not commit become POSTED again; whoever waits for one
 * is woken; the rings' entries stay to be polled, and the directory entries go when they are (R2:
 * drain, return, wake, free). Needs objects().
 */
void reap_what_it_took(Process& process, PeerProcess& dead);

/**
 * Our own work requests that named SRQs of the dead process fail now, and every completion channel
 * becomes readable, whatever the ready bits say (R8). Needs objects().
 */
void wake_after_death(Process& process, PeerProcess& dead);

}  // namespace millrace::soft
