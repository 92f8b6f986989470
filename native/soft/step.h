#pragma once

#include "base/step.h"

namespace millrace::soft {

// The steps of the device's own protocol; base/step.h says what they are for.
using base::delay;
using base::delays_on;
using base::read_delays;
using base::step;
#ifdef MILLRACE_STEPS
using base::kEachStep;
using base::signal_at_step;
using base::steps_passed;
#endif

}  // namespace millrace::soft
