#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>
#include <thread>

#include "colossal/base/error.h"
#include "colossal/base/foreign_error.h"

namespace colossal::test::uncaught_error_test {
namespace {

/// Throws on another thread, because gtest catches exceptions of the test's own thread.
template <class Exception>
void throw_on_a_thread(const Exception& exception) {
  exit_on_uncaught_error();
  exit_on_uncaught_error();
  std::thread([&] { throw exception; }).join();
}

TEST(UncaughtErrorDeathTest, EndsTheProcessWithItsMessage) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(throw_on_a_thread(Error("data", "there is no file")), testing::ExitedWithCode(1),
              "^\\[data\\] there is no file\n$");
}

TEST(UncaughtErrorDeathTest, DoesNotChangeOtherExceptions) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(throw_on_a_thread(std::runtime_error("other")), testing::KilledBySignal(SIGABRT), "other");
}

}  // namespace
}  // namespace colossal::test::uncaught_error_test
