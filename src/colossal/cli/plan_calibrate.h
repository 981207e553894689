#pragma once
#include <cstdint>
#include <vector>

#include "colossal/cli/arguments.h"

namespace colossal::cli {

/// `colossal plan --calibrate [--to FILE]`: measures this machine and stores the profile, by default at
/// plan::stored_profile_path(). The command `plan` calls it if --calibrate is among the arguments.
///
/// Without a launcher it starts local ranks itself. On the CPU it starts one run for each of calibrated_ranks(), and
/// joins their profiles; with GPUs it starts one rank for each GPU. Under a launcher it measures with the ranks that it
/// has, which includes links between hosts; rank 0 writes the file. Cost: at most two minutes.
int plan_calibrate(const Arguments& arguments);

/// Returns the numbers of ranks to measure with on `cores` cores: divisors of it, each at least twice the one before,
/// from 1 to `cores` or at most 128.
std::vector<int64_t> calibrated_ranks(int64_t cores);

}  // namespace colossal::cli
