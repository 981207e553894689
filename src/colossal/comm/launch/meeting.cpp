#include "colossal/comm/launch/meeting.h"

#include <functional>
#include <optional>

#include "colossal/base/error.h"
#include "colossal/comm/launch/handover.h"

namespace colossal::comm {
namespace {

/// Outcome of a rank: "ok" or the message of its error.
constexpr const char* kOk = "ok";

std::string outcome_of(const std::function<void()>& task) {
  try {
    task();
    return kOk;
  } catch (const Error& error) {
    return error.message();
  } catch (const std::exception& error) {
    return plain_message(error);
  }
}

}  // namespace

void throw_missing(const Meeting& meeting) {
  std::string missing;
  int count = 0;
  for (int r = 0; r < meeting.size; ++r) {
    try {
      if (meeting.store->holds(concat("here/", r))) continue;
    } catch (const std::exception&) {
      return;
    }
    if (++count <= 8) missing += concat(count > 1 ? ", " : "", r);
  }
  if (count == 0) return;
  if (count > 8) missing += ", ...";
  throw Error("launch", concat("waited ", meeting.limit.count() / 1000.0, " s for ", meeting.what, ": ", count, " of ",
                               meeting.size, " ranks did not join: ", missing,
                               "; look for their messages, or raise the timeout if they only start slowly"));
}

std::vector<std::string> gather_texts(const Meeting& meeting, const std::string& text) {
  meeting.store->set(concat("here/", meeting.rank), text);
  std::vector<std::string> keys;
  for (int r = 0; r < meeting.size; ++r) keys.push_back(concat("here/", r));
  try {
    return meeting.store->get_all(keys, meeting.limit, meeting.what);
  } catch (const Error&) {
    throw_missing(meeting);
    throw;  // all arrived, but one value cannot be read, or the store no longer answers
  }
}

std::shared_ptr<Segment> share_segment(const Meeting& meeting, size_t bytes) {
  const auto part = [&](const char* step) {
    Meeting result = meeting;
    result.store = meeting.store->with_prefix(step);
    return result;
  };
  gather_texts(part("come"), "");
  std::shared_ptr<Segment> segment;
  std::optional<Handover> handover;  // kept until all ranks have received the memory
  std::string outcome;
  if (meeting.rank == 0) {
    outcome = outcome_of([&] {
      Descriptor memory = create_shared_memory(bytes);
      segment = map_shared_memory(memory, bytes);
      handover.emplace(std::move(memory));
    });
    meeting.store->set("ticket", handover ? handover->ticket() : "");
  } else {
    const std::string ticket =
        meeting.store->get("ticket", meeting.limit, "rank 0 to make shared memory for " + meeting.what);
    outcome = outcome_of([&] {
      if (!ticket.empty()) segment = map_shared_memory(take(ticket, meeting.limit), bytes);
    });
  }
  // All ranks exchange their outcomes before one of them throws.
  for (const auto& said : gather_texts(part("shared"), outcome)) require(said == kOk, "comm", said);
  return segment;
}

}  // namespace colossal::comm
