// What every transport adds to Group: a way to end it from outside.
#pragma once
#include <string>

#include "colossal/comm/group.h"

namespace colossal::comm {

class Backend : public Group {
 public:
  /// Ends the group on this rank, and on its peers where the transport can reach them: whoever waits or calls from now
  /// on gets Error("comm", reason), or the reason of an earlier abort. Thread safe; never throws.
  virtual void abort(const std::string& reason) noexcept = 0;
};

}  // namespace colossal::comm
