// Delays stop signals while a program starts.
//
//   const HeldStopSignals held;
//   become_torch("serve", arguments);   // the new program holds them, too, until end_on_stop_signals()
#pragma once
#include <csignal>

namespace colossal::cli {

/// During its lifetime SIGINT, SIGTERM and SIGHUP wait, in this thread, in threads and processes that it starts, and in
/// the program that this process becomes. end_on_stop_signals() ends the delay: a signal that has waited then ends the
/// process with status 0. Without it the destructor restores what was before.
class HeldStopSignals {
 public:
  HeldStopSignals() {
    const sigset_t stops = set();
    pthread_sigmask(SIG_BLOCK, &stops, &before_);
  }
  ~HeldStopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  HeldStopSignals(const HeldStopSignals&) = delete;
  HeldStopSignals& operator=(const HeldStopSignals&) = delete;

  /// Returns the signals that wait.
  static sigset_t set() {
    sigset_t stops;
    sigemptyset(&stops);
    for (const int signal : {SIGINT, SIGTERM, SIGHUP}) sigaddset(&stops, signal);
    return stops;
  }

 private:
  sigset_t before_{};
};

}  // namespace colossal::cli
