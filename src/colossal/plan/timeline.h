// Simulates one step of a run in time: the events of every role, on streams that overlap and links that are shared.
//
//   std::vector<plan::Role> roles;
//   roles.push_back({.name = "stage 0", .ranks = {0, 1}, .events = first});    // ranks with equal work are one role
//   roles.push_back({.name = "stage 1", .ranks = {2, 3}, .events = last});
//   const plan::StepTimeline step = plan::simulate_step(roles, costs);
//   step.seconds;                             // seconds of the step
//   step.parts().communication;               // seconds that no work hides
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "colossal/base/fields.h"
#include "colossal/base/step_events.h"
#include "colossal/plan/costs.h"

namespace colossal::plan {

/// Ranks of a run that do the same work. Only one of them is simulated.
struct Role {
  std::string name;
  std::vector<int> ranks;    ///< ranks of the run; `events` are those of one of them
  StepEvents events;         ///< as train::record_step returns them
  double input_seconds = 0;  ///< seconds that the rank waits for its batch before the step
};

/// The seconds of a step of one role. They add up to the step.
struct StepParts {
  double compute = 0;        ///< products, attention and elementwise work, except those of the optimizer
  double communication = 0;  ///< waits for calls, messages, copies and the disk while these are under way
  double bubble = 0;         ///< waits for other roles to begin a call or a message, and for the end of the step
  double optimizer = 0;      ///< work of phase `optimizer`
  double input = 0;          ///< Role::input_seconds
  void fields(Fields& f);
  double sum() const { return compute + communication + bubble + optimizer + input; }
};

/// One bar of a drawing.
struct StreamSpan {
  enum class Kind : uint8_t { Compute, Optimizer, Wait, Call, HostCopy, Disk };
  Kind kind = Kind::Compute;
  uint8_t phase = 0;          ///< comm::Phase of its first event
  bool recomputed = false;    ///< as StepEvent
  int16_t chunk = -1;         ///< as StepEvent
  int32_t micro_batch = -1;   ///< as StepEvent
  int32_t stream = 0;         ///< index in RoleTimeline::streams
  int32_t event = -1;         ///< its first event, as an index in the role's list
  double begin = 0, end = 0;  ///< seconds from the begin of the step
};

struct RoleTimeline {
  StepParts parts;
  double end = 0;                    ///< when the rank has done its last event
  std::vector<std::string> streams;  ///< "compute", then a stream of each group, of host copies and of the disk
  std::vector<StreamSpan> spans;     ///< in the order of their ends. Neighbouring work of one pass is one span
};

struct StepTimeline {
  double seconds = 0;               ///< when the last role ends
  std::vector<RoleTimeline> roles;  ///< in the order of the roles
  size_t busiest = 0;               ///< the first of the roles with the most seconds of compute and optimizer
  /// Returns the parts of the busiest role. Their sum is `seconds`.
  const StepParts& parts() const { return roles.at(busiest).parts; }
};

/// Simulates the events of all roles.
///
/// Streams:  a rank computes in the order of its list. Each group is a stream of its own, as are host copies and the
///           disk: a call begins when all members have reached it and earlier calls of the group are over, and the rank
///           goes on until it waits for it (StepEvent::Kind::Wait). A message begins when it is sent, whether or not
///           the receiver has reached its call, after earlier messages between these ranks through this group. A step
///           ends after all calls that the rank began, also those that it does not wait for.
/// Links:    each rank has an outgoing and an incoming link of each kind (GroupPlace::link). A collective occupies
///           both, a message the outgoing one of its sender and the incoming one of its receiver. n calls on a link
///           each proceed at 1/n of their speed; the fullest link of a call counts.
/// Roles:    a group or a message within one role is one with ranks that do the same at the same time. The n-th call
///           of a group is the n-th call of the same name among the same roles; of a collective whose members report
///           different seconds the longest counts.
/// Results:  depend on the arguments alone, bit by bit.
/// Errors ("timeline"): no roles; a rank in no role or in two; a call of a group that the list does not have; a wait
///           for a call that does not come before it; calls that do not match, so that a rank would wait forever, with
///           its role and group; a cost that is negative or not finite.
/// Cost:     O(E log E) for E events of all roles together, and the ranks of their groups once. 16 layers on 64 ranks,
///           each of them a role of its own, take less than a second.
StepTimeline simulate_step(const std::vector<Role>& roles, const Costs& costs);

}  // namespace colossal::plan
