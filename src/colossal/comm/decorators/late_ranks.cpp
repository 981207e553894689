#include "colossal/comm/decorators/late_ranks.h"

#include <sstream>

#include "colossal/base/error.h"

namespace colossal::comm {
namespace {

constexpr const char* kVerdict = "verdict";
constexpr const char* kSaid = "said";

std::string call_key(const std::string& group, int rank) { return concat("calls/", group, "/", rank); }
std::string waiting_key(int rank) { return concat("waiting/", rank); }
std::string busy_key(int rank) { return concat("busy/", rank); }
std::string stall_key(int64_t number) { return concat("stall/", number); }

/// Returns the text that follows the numbers of a line.
std::string rest_of(std::istringstream& in) {
  std::string text;
  in.get();  // the space
  std::getline(in, text);
  return text;
}

}  // namespace

void Announcements::set_called(const std::string& group, int rank, const Called& called) {
  store_->set(call_key(group, rank), concat(called.number, " ", called.text));
}

Announcements::Called Announcements::called(const std::string& group, int rank) {
  const auto line = store_->find(call_key(group, rank));
  if (!line) return {};
  std::istringstream in(*line);
  Called called;
  in >> called.number;
  called.text = rest_of(in);
  return called;
}

void Announcements::set_waiting(int rank, const Waiting& waiting) {
  store_->set(waiting_key(rank), concat(waiting.waits ? 1 : 0, " ", waiting.for_busy));
}

Announcements::Waiting Announcements::waiting(int rank) {
  std::istringstream in(store_->find(waiting_key(rank)).value_or("0 -1"));
  Waiting waiting;
  in >> waiting.waits >> waiting.for_busy;
  return waiting;
}

void Announcements::set_busy(int rank, const std::optional<Busy>& busy) {
  store_->set(busy_key(rank), busy ? concat(busy->beat, " ", busy->episode, " ", busy->seconds, " ", busy->what) : "");
}

std::optional<Announcements::Busy> Announcements::busy(int rank) {
  const std::string line = store_->find(busy_key(rank)).value_or("");
  if (line.empty()) return std::nullopt;
  std::istringstream in(line);
  Busy busy;
  in >> busy.beat >> busy.episode >> busy.seconds;
  busy.what = rest_of(in);
  return busy;
}

bool Announcements::claim(const std::string& key) { return store_->add("claims/" + key, 1) == 1; }

void Announcements::say(const Stall& stall) {
  store_->set(stall_key(store_->add(kSaid, 1)), concat(stall.is_over ? 1 : 0, " ", stall.seconds, " ",
                                                       stall.busy_with.size(), " ", stall.busy_with, stall.text));
}

std::vector<Stall> Announcements::hear() {
  std::vector<Stall> news;
  while (const auto line = store_->find(stall_key(heard_ + 1))) {
    ++heard_;
    std::istringstream in(*line);
    Stall stall;
    stall.seen_here = false;
    size_t busy_bytes = 0;
    in >> stall.is_over >> stall.seconds >> busy_bytes;
    const std::string texts = rest_of(in);
    stall.busy_with = texts.substr(0, busy_bytes);
    stall.text = texts.substr(stall.busy_with.size());
    news.push_back(std::move(stall));
  }
  return news;
}

void Announcements::offer_verdict(const std::string& verdict) {
  // No claim is used: a stranger can raise its counter, and a rank that claimed may die before it writes the verdict.
  if (!this->verdict()) store_->set(kVerdict, verdict);
}

std::optional<std::string> Announcements::verdict() { return store_->find(kVerdict); }

std::string LateRanks::Wait::text() const { return concat(call, " on group \"", group, "\" (", phase, ")"); }

bool LateRanks::is_alive(int rank, const Announcements::Busy& busy) {
  const auto now = Clock::now();
  auto [pulse, is_new] = pulses_.try_emplace(rank, Pulse{busy.beat, now});
  if (pulse->second.beat != busy.beat) pulse->second = {busy.beat, now};
  return now - pulse->second.seen <= limit_;
}

LateRanks::Excuse LateRanks::excuse(int rank, bool insist) {
  Excuse result;
  const Announcements::Waiting waiting = announcements_->waiting(rank);
  // A waiting rank does not count as busy, whatever it announced, but the rank that it waits for may be busy. That
  // rank's own announcement decides, because ranks that excused each other would wait forever.
  const int working = waiting.waits ? waiting.for_busy : rank;
  result.waits_elsewhere = waiting.waits && !insist;
  if (working < 0) return result;
  const auto busy = announcements_->busy(working);
  if (!busy) return result;
  if (is_alive(working, *busy)) {
    result.busy_rank = working;
    result.busy = *busy;
  } else if (working == rank) {
    result.doubt =
        concat("; it has been ", busy->what, " for ", busy->seconds, " s, and its process no longer answers");
  }
  return result;
}

LateRanks::Finding LateRanks::excused(const Wait& wait, const Excuse& excuse) const {
  return {concat("rank ", excuse.busy_rank, " has been ", excuse.busy.what, " for ", excuse.busy.seconds,
                 " s; waiting for it: ", wait.text()),
          excuse.busy_rank, excuse.busy.episode, excuse.busy.what};
}

LateRanks::Finding LateRanks::find(const Wait& wait, bool is_final, bool insist) {
  const int size = static_cast<int>(wait.ranks.size());
  const std::string where = concat(" on group \"", wait.group, "\" (", wait.phase, ")");
  if (wait.number == 0) {
    const Excuse excuse = this->excuse(wait.ranks[wait.peer], insist);
    if (excuse.busy_rank >= 0) return excused(wait, excuse);
    if (excuse.waits_elsewhere) return {};
    const std::string never = is_final     ? wait.sends ? " never received" : " never sent"
                              : wait.sends ? " has not received"
                                           : " has not sent";
    return {concat("rank ", wait.peer, " of ", size, never, " what rank ", wait.rank,
                   wait.sends ? " sends: " : " waits for: ", wait.call, where, excuse.doubt)};
  }
  bool someone_waits = false;
  for (int r = 0; r < size; ++r) {
    if (r == wait.rank) continue;
    const Announcements::Called peer = announcements_->called(wait.key, r);
    if (wait.is_comparable && peer.number == wait.number && peer.text != wait.call) {
      return {concat("rank ", r, " of ", size, " called ", peer.text, " while rank ", wait.rank, " called ", wait.call,
                     where, "; every rank must make the same calls in the same order")};
    }
    if (peer.number >= wait.number) continue;
    const Excuse excuse = this->excuse(wait.ranks[r], insist);
    if (excuse.busy_rank >= 0) return excused(wait, excuse);
    someone_waits = someone_waits || excuse.waits_elsewhere;
    if (excuse.waits_elsewhere) continue;
    const std::string last = peer.number == 0 ? "it has made no call there" : "its last call there was " + peer.text;
    return {concat("rank ", r, " of ", size, is_final ? " never called " : " has not called ", wait.call, where, "; ",
                   last, excuse.doubt)};
  }
  if (someone_waits) return {};
  return {concat("all ", size, " ranks called ", wait.call, where, ", but it did not finish",
                 is_final ? "; the transport between them is stuck" : " yet")};
}

}  // namespace colossal::comm
