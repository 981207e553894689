// Runs commands of `colossal` in this process, as a user runs them.
#pragma once
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <vector>

#include "colossal/cli/main.h"

namespace colossal::cli {

struct Outcome {
  int status;
  std::string out, err;
};

/// Runs `colossal command words...`.
inline Outcome run_command(const std::string& command, std::vector<std::string> words) {
  words.insert(words.begin(), {"colossal", command});
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(argv.size()), argv.data());
  return {status, ::testing::internal::GetCapturedStdout(), ::testing::internal::GetCapturedStderr()};
}

/// Does the same with standard output on a full disk; the output is lost.
inline Outcome run_on_full_disk(std::vector<std::string> words) {
  words.insert(words.begin(), "colossal");
  std::vector<char*> argv;
  for (auto& word : words) argv.push_back(word.data());
  std::fflush(stdout);
  const int out = ::dup(1), full = ::open("/dev/full", O_WRONLY | O_CLOEXEC);
  EXPECT_GE(::dup2(full, 1), 0);
  ::testing::internal::CaptureStderr();
  const int status = main(static_cast<int>(argv.size()), argv.data());
  const std::string err = ::testing::internal::GetCapturedStderr();
  std::clearerr(stdout);
  EXPECT_GE(::dup2(out, 1), 0);
  ::close(out);
  ::close(full);
  return {status, "", err};
}

}  // namespace colossal::cli
