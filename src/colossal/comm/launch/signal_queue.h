// Receives the signals of a launcher through a descriptor, so that no code runs in a handler.
#pragma once
#include <signal.h>

#include <chrono>

namespace colossal::comm {

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

}  // namespace colossal::comm
