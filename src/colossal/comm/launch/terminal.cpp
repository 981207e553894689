#include "colossal/comm/launch/terminal.h"

#include <fcntl.h>
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

Foreground::Foreground() : descriptor_(open("/dev/tty", O_RDWR | O_NOCTTY | O_CLOEXEC)) {}

Foreground::~Foreground() {
  take_back();
  if (descriptor_ >= 0) close(descriptor_);
}

bool Foreground::give_to(pid_t group) {
  if (descriptor_ < 0) return false;
  const pid_t foreground = tcgetpgrp(descriptor_);
  if (foreground != getpgrp() && (holder_ == 0 || foreground != holder_)) return false;
  termios modes{};
  if (!modes_ && tcgetattr(descriptor_, &modes) == 0) modes_ = modes;
  if (tcsetpgrp(descriptor_, group) != 0) return false;
  holder_ = group;
  return true;
}

void Foreground::take_back() {
  if (holder_ != 0 && tcgetpgrp(descriptor_) == holder_) {
    tcsetpgrp(descriptor_, getpgrp());
    if (modes_) tcsetattr(descriptor_, TCSANOW, &*modes_);  // a killed program leaves its own, without echo perhaps
  }
  holder_ = 0;
}

}  // namespace colossal::comm
