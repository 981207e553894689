// The lock of a run folder.
#include "colossal/base/run_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <memory>

#include "support/temporary_folder.h"
#include "support/thrown_message.h"

namespace colossal::run_folder_test {
namespace {

TEST(RunLock, ReleasesWhatForkedChildrenShare) {
  test::TemporaryFolder folder;
  const auto taken = [&] { return test::thrown_message([&] { RunLock again(folder.path()); }); };
  auto lock = std::make_unique<RunLock>(folder.path());
  const pid_t child = fork();
  if (child == 0) {
    lock.reset();  // releases nothing of the parent's
    pause();
    _exit(0);
  }
  const pid_t other = fork();
  if (other == 0) {
    pause();
    _exit(0);
  }
  EXPECT_THAT(taken(), testing::HasSubstr("another run is writing to " + folder.path()));
  lock.reset();
  EXPECT_EQ(taken(), "") << "although a child still has the descriptor";
  for (const pid_t each : {child, other}) {
    kill(each, SIGKILL);
    waitpid(each, nullptr, 0);
  }
}

}  // namespace
}  // namespace colossal::run_folder_test
