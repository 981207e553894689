// The signals that a launcher receives, and the process group in the foreground of its terminal.
#pragma once
#include <signal.h>
#include <sys/types.h>
#include <termios.h>

#include <chrono>
#include <optional>

namespace colossal::comm {

/// Receives the signals of a launcher through a descriptor, so that no code runs in a handler.
///
/// During its lifetime SIGINT, SIGTERM and SIGCHLD wait for wait(), and so do SIGHUP and SIGTSTP, unless they were
/// ignored before (SIGHUP under nohup). SIGPIPE and SIGTTOU are blocked: output to a closed pipe does not end this
/// process, and it may give a terminal away from the background.
class SignalQueue {
 public:
  /// Errors: throws Error("launch", ...) if the system has no descriptor left.
  SignalQueue();
  ~SignalQueue();
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  /// Returns the mask of this thread before the construction, for the processes that it starts.
  const sigset_t& mask_before() const { return before_; }
  /// Returns the next signal, or 0 after `limit`.
  int wait(std::chrono::milliseconds limit) const;
  /// Stops this process as SIGTSTP or SIGTTIN does, and returns after it has been continued. Returns at once if no
  /// shell could continue it.
  void stop_by(int signal) const;

 private:
  sigset_t before_{};
  int descriptor_;
};

/// Gives the controlling terminal of this process to the process group of a rank, as a shell does for a job. The
/// terminal's foreground process group reads what the user types and gets the signals of Ctrl-C and Ctrl-Z. The caller
/// blocks SIGTTOU. Without a terminal all functions do nothing.
class Foreground {
 public:
  Foreground();
  /// Takes the terminal back.
  ~Foreground();
  Foreground(const Foreground&) = delete;
  Foreground& operator=(const Foreground&) = delete;

  /// Makes `group` the foreground process group. Returns false if there is no terminal, or if neither this process nor
  /// the holder is in its foreground.
  bool give_to(pid_t group);
  /// Makes the process group of this process the foreground again, with the modes that the terminal had before the
  /// first give_to(). Does nothing if the terminal has been given to a process outside of this run in the meantime.
  void take_back();
  /// Returns the process group that has the terminal; 0 = no other group has it.
  pid_t holder() const { return holder_; }

 private:
  const int descriptor_;
  pid_t holder_ = 0;
  std::optional<termios> modes_;  // before the first give_to()
};

}  // namespace colossal::comm
