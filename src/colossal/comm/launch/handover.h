// Passes an open file from one process to others of its host, over a socket that has no name in any file system.
#pragma once
#include <chrono>
#include <string>
#include <thread>

#include "colossal/base/descriptor.h"

namespace colossal::comm {

/// Sends a descriptor to every process of this user on this host that shows the token. It serves any number of
/// requests, on a separate thread, until destruction. The socket is an abstract one of the network namespace, so it
/// leaves no trace however the process ends. Its name is random. Callers of another user, callers without the token and
/// callers that send no data get no descriptor and delay no other caller.
class Handover {
 public:
  /// Errors: throws Error("comm", ...) if the system provides no socket.
  explicit Handover(Descriptor file);
  ~Handover();
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  /// Returns the argument of take(): the socket's name and the token.
  std::string ticket() const { return name_ + " " + token_; }

 private:
  void serve();
  void answer(const Descriptor& caller) const;

  const Descriptor file_;
  const std::string name_, token_;
  Descriptor listener_, stop_;
  std::thread thread_;
};

/// Parts of the error of take(): "cannot get WHAT: ...; ranks that cannot reach each other's sockets, as in containers,
/// must REMEDY".
struct HandoverWords {
  std::string what = "the shared memory of a rank on this host";
  std::string remedy = "use backend = \"gloo\"";
};

/// Returns the descriptor that a Handover of this user, in this network namespace, serves for `ticket`. Errors: throws
/// Error("comm", ...) if there is no such Handover or no answer arrives within `limit`.
Descriptor take(const std::string& ticket, std::chrono::milliseconds limit, const HandoverWords& words = {});

}  // namespace colossal::comm
