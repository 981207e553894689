#include "colossal/comm/launch/signal_queue.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

bool is_ignored(int signal) {
  struct sigaction action{};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace

SignalQueue::SignalQueue() {
  sigset_t received;
  sigemptyset(&received);
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGPIPE}) sigaddset(&received, signal);
  for (const int signal : {SIGHUP, SIGTSTP})
    if (!is_ignored(signal)) sigaddset(&received, signal);
  sigset_t blocked = received;
  sigaddset(&blocked, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  descriptor_ = signalfd(-1, &received, SFD_CLOEXEC | SFD_NONBLOCK);
  const int failure = errno;
  if (descriptor_ < 0) pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  require(descriptor_ >= 0, "launch", "cannot watch signals: ", std::strerror(failure));
}

SignalQueue::~SignalQueue() {
  close(descriptor_);
  sigset_t broken_pipe;  // a report to a closed pipe raised it: it must not end this process now
  sigemptyset(&broken_pipe);
  sigaddset(&broken_pipe, SIGPIPE);
  const timespec at_once{};
  while (sigtimedwait(&broken_pipe, nullptr, &at_once) > 0) continue;
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

int SignalQueue::wait(std::chrono::milliseconds limit) const {
  pollfd entry{descriptor_, POLLIN, 0};
  poll(&entry, 1, static_cast<int>(limit.count()));
  signalfd_siginfo info{};
  return read(descriptor_, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

void SignalQueue::stop_by(int signal) const {
  struct sigaction stop{}, before{};
  stop.sa_handler = SIG_DFL;
  sigaction(signal, &stop, &before);
  sigset_t only, mask;
  sigemptyset(&only);
  sigaddset(&only, signal);
  pthread_sigmask(SIG_UNBLOCK, &only, &mask);
  raise(signal);
  pthread_sigmask(SIG_SETMASK, &mask, nullptr);
  sigaction(signal, &before, nullptr);
}

}  // namespace colossal::comm
