#include "colossal/comm/launch/foreground.h"

#include <fcntl.h>
#include <unistd.h>

namespace colossal::comm {

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
