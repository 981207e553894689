// What every transport adds to Group: a way to end it from outside.
#pragma once
#include <chrono>
#include <string>

#include "colossal/comm/group.h"

namespace colossal::comm {

/// Longer than any wait that the watchdog allows, and than what ranks are busy with: for libraries that want a limit of
/// their own. (In milliseconds it fits the int that poll() takes.)
inline constexpr std::chrono::milliseconds kFarOff = std::chrono::hours(24 * 14);

class Backend : public Group {
 public:
  /// Ends the group on this rank, and on its peers where the transport can reach them: whoever waits or calls from now
  /// on gets Error("comm", reason), or the reason of an earlier abort. Thread safe; never throws.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace colossal::comm
