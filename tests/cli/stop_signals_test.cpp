// Signals that ask a program to end, with a wrapper in its process group that passes them on.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>

#include "colossal/cli/local_world.h"

namespace colossal::cli::stop_signals_test {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

/// A program that watches for signals, and a wrapper in its process group. Both are processes of their own.
class Wrapped {
 public:
  Wrapped() {
    EXPECT_EQ(pipe(to_wrapper_), 0);
    EXPECT_EQ(pipe(from_wrapper_), 0);
    wrapper_ = fork();
    if (wrapper_ == 0) wrap();
    EXPECT_EQ(read(from_wrapper_[0], &program_, sizeof program_), static_cast<ssize_t>(sizeof program_));
  }
  ~Wrapped() {
    kill(program_, SIGKILL);
    close(to_wrapper_[1]);
    waitpid(wrapper_, nullptr, 0);
    for (const int file : {to_wrapper_[0], from_wrapper_[0], from_wrapper_[1]}) close(file);
  }

  /// Sends SIGTERM from the wrapper, and waits until the program has handled it. Returns false if it has ended.
  bool pass_on() {
    char done = 0;
    EXPECT_EQ(write(to_wrapper_[1], "s", 1), 1);
    return read(from_wrapper_[0], &done, 1) == 1 && done == 'a';
  }
  /// Sends SIGTERM from this process, and waits until the program answers. Returns false if it ends instead.
  bool send() {
    kill(program_, SIGTERM);
    char done = 0;
    EXPECT_EQ(write(to_wrapper_[1], "w", 1), 1);
    return read(from_wrapper_[0], &done, 1) == 1 && done == 'a';
  }

 private:
  [[noreturn]] void wrap() {
    setpgid(0, 0);
    signal(SIGPIPE, SIG_IGN);
    close(to_wrapper_[1]);
    int beats[2];
    if (pipe(beats) != 0) _exit(1);
    const pid_t program = fork();
    if (program == 0) {
      watch_stop_signals();
      for (;; usleep(1000))
        if (const Time now = Clock::now(); write(beats[1], &now, sizeof now) < 0) _exit(1);
    }
    close(beats[1]);
    Time beat;
    if (read(beats[0], &beat, sizeof beat) < 0) _exit(1);  // the program watches now
    if (write(from_wrapper_[1], &program, sizeof program) < 0) _exit(1);
    for (char word = 0; read(to_wrapper_[0], &word, 1) == 1;) {
      if (word == 's') kill(program, SIGTERM);
      // A signal is handled before the program returns from its sleep, so a later beat comes from one that lives.
      const Time wanted = Clock::now() + std::chrono::milliseconds(50);
      bool lives = true;
      while (lives && beat < wanted) lives = read(beats[0], &beat, sizeof beat) == sizeof beat;
      if (write(from_wrapper_[1], lives ? "a" : "d", 1) != 1) _exit(1);
    }
    kill(program, SIGKILL);
    _exit(0);
  }

  int to_wrapper_[2]{}, from_wrapper_[2]{};
  pid_t wrapper_ = 0, program_ = 0;
};

TEST(StopSignals, IgnoreACopyAfterTheOriginal) {
  Wrapped run;
  EXPECT_TRUE(run.send());
  EXPECT_TRUE(run.pass_on());
  EXPECT_TRUE(run.pass_on()) << "`timeout` sends it to its child and to its group";
  EXPECT_FALSE(run.send()) << "a second request ends the program at once";
}

// Two threads of the program may handle the two signals, in any order.
TEST(StopSignals, IgnoreTheOriginalAfterItsCopy) {
  Wrapped run;
  EXPECT_TRUE(run.pass_on());
  EXPECT_TRUE(run.send());
  EXPECT_FALSE(run.send());
}

TEST(StopSignals, EndTheProgramAtTheSecondRequest) {
  Wrapped run;
  EXPECT_TRUE(run.send());
  EXPECT_FALSE(run.send());
}

}  // namespace
}  // namespace colossal::cli::stop_signals_test
