#include "colossal/comm/meeting.h"

#include <algorithm>
#include <functional>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::milliseconds left_until(Clock::time_point end) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
  return std::max(left, std::chrono::milliseconds(1));
}

[[noreturn]] void throw_missing(const Meeting& meeting) {
  std::string missing;
  int count = 0;
  for (int r = 0; r < meeting.size; ++r) {
    if (meeting.store->find(concat("here/", r))) continue;
    if (++count <= 8) missing += concat(count > 1 ? ", " : "", r);
  }
  if (count > 8) missing += ", ...";
  throw Error("launch", concat("waited ", meeting.limit.count() / 1000.0, " s for ", meeting.what, ": ", count, " of ",
                               meeting.size, " ranks did not come: ", missing,
                               "; look for their messages, or raise the timeout if they only start slowly"));
}

/// "ok" or the message of what went wrong on one of the ranks.
constexpr const char* kOk = "ok";

std::string outcome_of(const std::function<void()>& task) {
  try {
    task();
    return kOk;
  } catch (const Error& error) {
    return std::string(error.what()).substr(error.component().size() + 3);
  }
}

void require_ok(const std::vector<std::string>& outcomes) {
  for (const auto& outcome : outcomes) require(outcome == kOk, "comm", outcome);
}

}  // namespace

std::vector<std::string> gather_texts(const Meeting& meeting, const std::string& text) {
  const auto end = Clock::now() + meeting.limit;
  meeting.store->set(concat("here/", meeting.rank), text);
  std::vector<std::string> all(meeting.size);
  for (int r = 0; r < meeting.size; ++r) {
    try {
      all[r] = r == meeting.rank ? text : meeting.store->get(concat("here/", r), left_until(end), meeting.what);
    } catch (const Error&) {
      throw_missing(meeting);
    }
  }
  return all;
}

std::shared_ptr<Segment> share_segment(const Meeting& meeting, const std::string& name, size_t bytes) {
  const auto part = [&](const char* step) {
    Meeting result = meeting;
    result.store = meeting.store->with_prefix(step);
    return result;
  };
  gather_texts(part("come"), "");
  std::shared_ptr<Segment> segment;
  const std::string created = outcome_of([&] {
    if (meeting.rank == 0) segment = create_shared_segment(name, bytes);
  });
  std::string seen = created;
  if (meeting.rank == 0) {
    meeting.store->set("created", created);
  } else {
    seen = meeting.store->get("created", meeting.limit, "rank 0 to create shared memory for " + meeting.what);
  }
  require_ok({seen});
  const std::string opened = outcome_of([&] {
    if (meeting.rank != 0) segment = open_shared_segment(name, bytes);
  });
  try {
    require_ok(gather_texts(part("opened"), opened));
  } catch (...) {
    if (meeting.rank == 0) unlink_shared_segment(name);
    throw;
  }
  if (meeting.rank == 0) unlink_shared_segment(name);
  return segment;
}

}  // namespace colossal::comm
