#include "colossal/comm/launch/rendezvous.h"

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

void throw_missing(const Rendezvous& rendezvous) {
  std::string missing;
  int count = 0;
  for (int r = 0; r < rendezvous.size; ++r) {
    try {
      if (rendezvous.store->holds(concat("here/", r))) continue;
    } catch (const std::exception&) {
      return;
    }
    if (++count <= 8) missing += concat(count > 1 ? ", " : "", r);
  }
  if (count == 0) return;
  if (count > 8) missing += ", ...";
  throw Error("launch", concat("waited ", rendezvous.limit.count() / 1000.0, " s for ", rendezvous.what, ": ", count,
                               " of ", rendezvous.size, " ranks did not join: ", missing,
                               "; look for their messages, or raise the timeout if they only start slowly"));
}

std::vector<std::string> gather_texts(const Rendezvous& rendezvous, const std::string& text) {
  rendezvous.store->set(concat("here/", rendezvous.rank), text);
  std::vector<std::string> keys;
  for (int r = 0; r < rendezvous.size; ++r) keys.push_back(concat("here/", r));
  try {
    return rendezvous.store->get_all(keys, rendezvous.limit, rendezvous.what);
  } catch (const Error&) {
    throw_missing(rendezvous);
    throw;  // all arrived, but one value cannot be read, or the store no longer answers
  }
}

std::shared_ptr<Segment> share_segment(const Rendezvous& rendezvous, size_t bytes) {
  const auto part = [&](const char* step) {
    Rendezvous result = rendezvous;
    result.store = rendezvous.store->with_prefix(step);
    return result;
  };
  gather_texts(part("come"), "");
  std::shared_ptr<Segment> segment;
  std::optional<Handover> handover;  // kept until all ranks have received the memory
  std::string outcome;
  if (rendezvous.rank == 0) {
    outcome = outcome_of([&] {
      Descriptor memory = create_shared_memory(bytes);
      segment = map_shared_memory(memory, bytes);
      handover.emplace(std::move(memory));
    });
    rendezvous.store->set("ticket", handover ? handover->ticket() : "");
  } else {
    const std::string ticket =
        rendezvous.store->get("ticket", rendezvous.limit, "rank 0 to make shared memory for " + rendezvous.what);
    outcome = outcome_of([&] {
      if (!ticket.empty()) segment = map_shared_memory(take(ticket, rendezvous.limit), bytes);
    });
  }
  // All ranks exchange their outcomes before one of them throws.
  for (const auto& said : gather_texts(part("shared"), outcome)) require(said == kOk, "comm", said);
  return segment;
}

}  // namespace colossal::comm
