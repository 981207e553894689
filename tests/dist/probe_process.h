// Starts one rank of the process tests of comm: colossal_comm_probe, through the launcher or alone.
#pragma once
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "support/paths.h"
#include "support/process.h"

namespace colossal::test {

/// Returns variables of a process, without those that a launcher around the tests may have set.
inline std::map<std::string, std::string> clean(std::map<std::string, std::string> more = {}) {
  for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "COLOSSAL_RANK",
                           "OMPI_COMM_WORLD_RANK", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "COLOSSAL_SECRET"}) {
    more.try_emplace(name, "");
  }
  more.try_emplace("OMP_NUM_THREADS", "1");
  return more;
}

inline Process launched(int ranks, const std::vector<std::string>& arguments) {
  Process process;
  process.command = {comm_probe(), "launch", std::to_string(ranks)};
  process.command.insert(process.command.end(), arguments.begin(), arguments.end());
  process.variables = clean();
  process.limit = std::chrono::seconds(120);
  return process;
}

inline int count(const std::string& text, const std::string& part) {
  int found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

inline void expect_success(const std::vector<Finished>& results) {
  for (const auto& result : results) EXPECT_EQ(result.status, 0) << result.output;
}

}  // namespace colossal::test
