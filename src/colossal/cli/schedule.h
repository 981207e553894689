#pragma once
#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal schedule --name NAME --stages P --micro-batches M ...`: draws a pipeline schedule, or compares all
/// schedules.
int schedule(const Arguments& arguments);

}  // namespace colossal::cli
