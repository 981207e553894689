#include "colossal/comm/decorators/announcements.h"

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

}  // namespace colossal::comm
