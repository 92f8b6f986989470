#pragma once

#include <infiniband/verbs.h>

#include "base/files.h"
#include "base/status.h"

namespace millrace::soft {

class PeerProcess;
class Process;

/** Whether a process whose objects were imported has ended, also when its death was not handled
 * yet. Costs a system call. */
bool is_gone(Process& process, const PeerProcess& peer);

/**
 * The descriptor that stands for a device as this process has it open (`ibv_context::cmd_fd`): a
 * small sealed file that says who and which device. It may be duplicated and sent to other
 * processes of the same user and fabric.
 */
base::Result<base::Fd> make_device_token(const Process& process, uint32_t device);

/**
 * A context in which handles of PDs name those of the process that the descriptor came from
 * (ibv_import_pd, then ibv_import_mr). Everything made in it belongs to this process. The
 * descriptor is closed with the context. EBADF: it is not open; EPROTONOSUPPORT: it is none of a
 * software device; EINVAL: of one in another fabric; ENODEV: the process that it is of has ended.
 */
ibv_context* import_device(int cmd_fd);

}  // namespace millrace::soft
