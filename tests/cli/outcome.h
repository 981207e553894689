// A command of `colossal` run in this process, as a person meets it.
#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "colossal/cli/main.h"

namespace colossal::cli {

struct Outcome {
  int status;
  std::string out, err;
};

/// `colossal command words...`
inline Outcome run_command(const std::string& command, std::vector<std::string> words) {
  words.insert(words.begin(), {"colossal", command});
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(argv.size()), argv.data());
  return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

}  // namespace colossal::cli
