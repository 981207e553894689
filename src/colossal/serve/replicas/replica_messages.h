// Messages between rank 0 of a server and rank 0 of another replica.
//
//   socket.send(serve::message_bytes(serve::EventMessage{ticket, event}));
//   const serve::ReplicaMessage message = serve::message_of(bytes);   // at the other end
#pragma once
#include <cstdint>
#include <string>
#include <variant>

#include "colossal/infer/request.h"
#include "colossal/serve/changes.h"
#include "colossal/serve/replica.h"

namespace colossal::serve {

/// An event of a generation. It has the ticket in place of Event::id.
struct EventMessage {
  Ticket ticket = 0;
  infer::Event event{};
};

/// The result of an embedding.
struct VectorsMessage {
  Ticket ticket = 0;
  Vectors vectors{};
};

/// A drawing to add.
struct NewDrawing {
  Ticket ticket = 0;
  DrawingJob job{};
};

/// The result of a drawing.
struct DrawnMessage {
  Ticket ticket = 0;
  Drawn drawn{};
};

/// The load of a replica.
struct LoadMessage {
  int64_t received = 0;  ///< pieces of work that had arrived before; `load` counts them until they end
  ReplicaLoad load{};
};

/// The last message of either end.
struct EndMessage {
  std::string reason{};  ///< the message of an error; "" = the server stops
};

/// Rank 0 sends Changes, NewDrawing and EndMessage; the replica sends the others and EndMessage.
using ReplicaMessage =
    std::variant<Changes, NewDrawing, EventMessage, VectorsMessage, DrawnMessage, LoadMessage, EndMessage>;

/// Returns a message as bytes for a process of the same program, without functions. Numbers keep all bits.
std::string message_bytes(const ReplicaMessage& message);
/// Returns the message of message_bytes(). Errors ("serve"): bytes that message_bytes() did not write.
ReplicaMessage message_of(const std::string& bytes);

}  // namespace colossal::serve
