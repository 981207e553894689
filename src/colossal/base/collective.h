// The collectives and messages that ranks exchange, as codes and names. Transports (comm) make them; planners (plan)
// price them without LibTorch.
//
//   StepEvent event{.collective = static_cast<uint8_t>(Collective::AllReduce)};    // base/step_events.h
//   std::puts(to_string(static_cast<Collective>(event.collective)));               // all_reduce
#pragma once
#include <cstdint>

namespace colossal {

/// A collective of a group, or a message between two ranks. comm::Group documents each. Recorded steps hold these
/// codes, so a new one goes to the end.
enum class Collective : uint8_t {
  AllReduce,
  AllGather,
  ReduceScatter,
  AllToAll,
  Broadcast,
  Reduce,
  Send,
  Recv,
  Barrier,
};

/// Returns the name that comm::Traffic counts under: "all_reduce", "all_gather", ...
const char* to_string(Collective collective);

}  // namespace colossal
