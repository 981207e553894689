// How one process hands an open file to others of its host: over a socket that has no name in any file system.
#pragma once
#include <chrono>
#include <string>
#include <thread>

#include "colossal/comm/descriptor.h"

namespace colossal::comm {

/// Hands a descriptor to every process of this user on this host that shows the token, as often as asked, on a thread
/// of its own until destruction. The socket is an abstract one of the network namespace, under a name nobody guesses:
/// nothing stays behind, however the process ends. Callers of another user, without the token, or that send nothing get
/// nothing and keep nobody else waiting.
class Handover {
 public:
  /// Errors: throws Error("comm", ...) when the system gives no socket.
  explicit Handover(Descriptor file);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  /// What take() needs to know: the socket's name and the token.
  std::string ticket() const { return name_ + " " + token_; }

 private:
  void serve();
  void answer(const Descriptor& caller) const;

  const Descriptor file_;
  const std::string name_, token_;
  Descriptor listener_, stop_;
  std::thread thread_;
};

/// The descriptor that a Handover of this user, in this network namespace, has for `ticket`. Errors: throws
/// Error("comm", ...) when nobody hands it out there or nothing has come within `limit`.
Descriptor take(const std::string& ticket, std::chrono::milliseconds limit);

}  // namespace colossal::comm
