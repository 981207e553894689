#include "colossal/serve/replicas/replica_link.h"

#include <atomic>
#include <utility>
#include <variant>

#include "colossal/base/error.h"

namespace colossal::serve {
namespace {

// Time for the last messages. Rank 0 has less, because it must still answer its clients.
constexpr std::chrono::milliseconds kTimeOfLink{5000}, kTimeOfRemote{1000};
constexpr char kRefusal[] = "the replica takes no more work, because it ends";

/// Returns the error of a drawing of the replica `name`.
std::exception_ptr named(const std::string& name, const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& known) {
    return std::make_exception_ptr(Error("serve", concat(name, ": ", plain_message(known))));
  }
}

void fail_work(const infer::OnEvent& on_event, const std::string& message) {
  if (on_event) on_event({.id = -1, .token = -1, .finish_reason = infer::FinishReason::EngineEnded, .error = message});
}

}  // namespace

RemoteReplica::RemoteReplica(Descriptor socket, std::string name, const std::string& loss, int64_t max_waiting)
    : name_(std::move(name)), max_waiting_(max_waiting), socket_(std::move(socket)) {
  socket_.start([this](const std::string& bytes) { receive(bytes); },
                [this, message = concat(name_, " ended: ", loss)] { fail(message); });
}

/// Keeps the work and returns the ticket of its first piece, or nothing if there is no room.
std::optional<Ticket> RemoteReplica::take_tickets(std::vector<std::shared_ptr<const Work>> work) {
  const auto count = static_cast<int64_t>(work.size());
  const std::lock_guard lock(mutex_);
  const int64_t waiting = reported_.load.waiting + added_ - reported_.received;
  if (error_ || waiting + count > max_waiting_) return std::nullopt;
  const Ticket first = next_ticket_;
  for (auto& piece : work) unfinished_.emplace_hint(unfinished_.end(), next_ticket_++, std::move(piece));
  added_ += count;
  return first;
}

std::optional<Ticket> RemoteReplica::add(std::vector<Generation> generations) {
  std::vector<std::shared_ptr<const Work>> work;
  for (Generation& generation : generations)
    work.push_back(std::make_shared<Work>(Work{.on_event = std::move(generation.on_event)}));
  const std::optional<Ticket> first = take_tickets(std::move(work));
  if (!first) return std::nullopt;
  Changes changes;
  for (Generation& generation : generations) {
    const Ticket ticket = *first + static_cast<Ticket>(changes.generations.size());
    const Ticket after = generation.after < 0 ? 0 : *first + generation.after;
    changes.generations.push_back({ticket, after, std::move(generation)});
  }
  socket_.send(message_bytes(std::move(changes)));
  return first;
}

std::optional<Ticket> RemoteReplica::add(Embedding embedding) {
  const std::optional<Ticket> ticket =
      take_tickets({std::make_shared<Work>(Work{.on_vectors = std::move(embedding.on_vectors)})});
  if (!ticket) return std::nullopt;
  Changes changes;
  changes.embeddings.push_back({*ticket, std::move(embedding)});
  socket_.send(message_bytes(std::move(changes)));
  return ticket;
}

std::optional<Ticket> RemoteReplica::draw(DrawingJob job) {
  const std::optional<Ticket> ticket = take_tickets({std::make_shared<Work>(Work{.on_drawn = std::move(job.on_end)})});
  if (ticket) socket_.send(message_bytes(NewDrawing{*ticket, std::move(job)}));
  return ticket;
}

void RemoteReplica::prepare(const std::string& schema) {
  Changes changes;
  changes.schemas.push_back(schema);
  socket_.send(message_bytes(std::move(changes)));
}

void RemoteReplica::cancel(Ticket ticket) {
  if (!find(ticket, true)) return;
  Changes changes;
  changes.cancelled.push_back(ticket);
  socket_.send(message_bytes(std::move(changes)));
}

ReplicaLoad RemoteReplica::load() const {
  const std::lock_guard lock(mutex_);
  ReplicaLoad load = reported_.load;
  load.waiting += added_ - reported_.received;
  if (error_) load.waiting = load.running = load.blocks_used = 0;
  return load;
}

std::optional<std::string> RemoteReplica::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

void RemoteReplica::end(const std::string& reason) {
  socket_.send(message_bytes(EndMessage{reason}));
  socket_.close(kTimeOfRemote);  // before fail(), because events must not overlap
  if (!reason.empty()) fail(reason);
}

/// Returns unfinished work, or null. Forgets it if it `has_ended`.
std::shared_ptr<const RemoteReplica::Work> RemoteReplica::find(Ticket ticket, bool has_ended) {
  const std::lock_guard lock(mutex_);
  const auto found = unfinished_.find(ticket);
  if (found == unfinished_.end()) return nullptr;
  auto work = found->second;
  if (has_ended) unfinished_.erase(found);
  return work;
}

void RemoteReplica::receive(const std::string& bytes) {
  ReplicaMessage message = message_of(bytes);
  // An error of the engine counts the ranks from the first one of the replica.
  const auto add_name = [this](std::string& error) { error = concat(name_, ": ", error); };
  if (auto* event = std::get_if<EventMessage>(&message)) {
    const infer::FinishReason reason = event->event.finish_reason;
    if (reason == infer::FinishReason::EngineEnded) add_name(event->event.error);
    const auto work = find(event->ticket, reason != infer::FinishReason::None);
    if (work && work->on_event) work->on_event(event->event);
  } else if (auto* result = std::get_if<VectorsMessage>(&message)) {
    if (result->vectors.engine_has_ended) add_name(result->vectors.error);
    const auto work = find(result->ticket, true);
    if (work && work->on_vectors) work->on_vectors(std::move(result->vectors));
  } else if (auto* result = std::get_if<DrawnMessage>(&message)) {
    Drawn& drawn = result->drawn;
    if (drawn.replica_has_ended && drawn.error) drawn.error = named(name_, drawn.error);
    const auto work = find(result->ticket, true);
    if (work && work->on_drawn) work->on_drawn(std::move(result->drawn));
  } else if (const auto* load = std::get_if<LoadMessage>(&message)) {
    const std::lock_guard lock(mutex_);
    reported_ = *load;
  } else if (const auto* end = std::get_if<EndMessage>(&message)) {
    fail(concat(name_, " ended", end->reason.empty() ? "" : ": ", end->reason));
  }
}

/// Ends all unfinished work with an error. The first error counts.
void RemoteReplica::fail(const std::string& message) {
  std::map<Ticket, std::shared_ptr<const Work>> unfinished;
  {
    const std::lock_guard lock(mutex_);
    if (error_) return;
    error_ = message;
    unfinished.swap(unfinished_);
  }
  for (const auto& [ticket, work] : unfinished) {
    fail_work(work->on_event, message);
    if (work->on_vectors) work->on_vectors({.error = message, .engine_has_ended = true});
    if (work->on_drawn)
      work->on_drawn({.error = std::make_exception_ptr(Error("serve", message)), .replica_has_ended = true});
  }
}

/// The state that the functions of the work share with the link. They may outlive the link.
struct ReplicaLink::Answers {
  explicit Answers(Descriptor descriptor) : socket(std::move(descriptor)) {}

  void send(const ReplicaMessage& message) { socket.send(message_bytes(message)); }
  void send_last(Ticket ticket, const ReplicaMessage& message) {
    send(message);
    const std::lock_guard lock(mutex);
    ended.push_back(ticket);
  }

  std::mutex mutex;
  std::vector<Ticket> ended;         // work whose last message was sent and whose ticket the link still has
  std::atomic<int64_t> received{0};  // pieces of work that the replica has
  MessageSocket socket;
};

ReplicaLink::ReplicaLink(Descriptor socket, Replica& replica, std::function<void()> on_end)
    : replica_(replica), on_end_(std::move(on_end)), answers_(std::make_shared<Answers>(std::move(socket))) {
  report_load();
  answers_->socket.start([this](const std::string& bytes) { receive(bytes); }, [this] { on_end_(); });
}

ReplicaLink::~ReplicaLink() { answers_->socket.close(std::chrono::milliseconds(0)); }

void ReplicaLink::report_load() {
  const int64_t received = answers_->received;  // first, because the load must have at least this work
  std::string report = message_bytes(LoadMessage{received, replica_.load()});
  if (report == last_report_) return;
  answers_->socket.send(report);
  last_report_ = std::move(report);
}

void ReplicaLink::end(const std::string& reason) {
  answers_->send(EndMessage{reason});
  answers_->socket.close(kTimeOfLink);
}

std::optional<std::string> ReplicaLink::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

void ReplicaLink::receive(const std::string& bytes) {
  ReplicaMessage message = message_of(bytes);
  if (auto* changes = std::get_if<Changes>(&message)) return apply(std::move(*changes));
  if (auto* drawing = std::get_if<NewDrawing>(&message)) return draw(std::move(*drawing));
  if (const auto* end = std::get_if<EndMessage>(&message)) {
    const std::lock_guard lock(mutex_);
    reason_ = end->reason;
  }  // the end of the stream follows
}

void ReplicaLink::apply(Changes changes) {
  {
    const std::lock_guard lock(answers_->mutex);
    for (const Ticket ticket : answers_->ended) tickets_.erase(ticket);
    answers_->ended.clear();
  }
  for (const std::string& schema : changes.schemas) replica_.prepare(schema);
  for (const Ticket ticket : changes.cancelled) {
    const auto found = tickets_.find(ticket);
    if (found == tickets_.end()) continue;
    replica_.cancel(found->second);
    tickets_.erase(found);
  }
  if (!changes.generations.empty()) add(std::move(changes.generations));
  for (NewEmbedding& added : changes.embeddings) add(std::move(added));
}

void ReplicaLink::add(std::vector<NewGeneration> added) {
  const Ticket first = added[0].ticket;
  const auto count = static_cast<int64_t>(added.size());
  std::vector<Generation> generations;
  for (NewGeneration& one : added) {
    one.generation.after = one.after == 0 ? -1 : one.after - first;
    one.generation.on_event = [answers = answers_, ticket = one.ticket](const infer::Event& event) {
      if (event.finish_reason == infer::FinishReason::None) return answers->send(EventMessage{ticket, event});
      answers->send_last(ticket, EventMessage{ticket, event});
    };
    generations.push_back(std::move(one.generation));
  }
  const std::optional<Ticket> ticket = replica_.add(std::move(generations));
  for (int64_t i = 0; i < count; ++i) {
    if (ticket)
      tickets_[first + i] = *ticket + i;
    else
      fail_work([&](const infer::Event& event) { answers_->send(EventMessage{first + i, event}); },
                concat("[serve] ", kRefusal));
  }
  answers_->received += count;
}

void ReplicaLink::add(NewEmbedding added) {
  added.embedding.on_vectors = [answers = answers_, ticket = added.ticket](Vectors vectors) {
    answers->send_last(ticket, VectorsMessage{ticket, std::move(vectors)});
  };
  const std::optional<Ticket> ticket = replica_.add(std::move(added.embedding));
  if (ticket)
    tickets_[added.ticket] = *ticket;
  else
    answers_->send(VectorsMessage{added.ticket, {.error = concat("[serve] ", kRefusal), .engine_has_ended = true}});
  ++answers_->received;
}

void ReplicaLink::draw(NewDrawing added) {
  added.job.on_end = [answers = answers_, ticket = added.ticket](Drawn drawn) {
    answers->send_last(ticket, DrawnMessage{ticket, std::move(drawn)});
  };
  if (const std::optional<Ticket> ticket = replica_.draw(std::move(added.job)))
    tickets_[added.ticket] = *ticket;
  else
    answers_->send(DrawnMessage{
        added.ticket, {.error = std::make_exception_ptr(Error("serve", kRefusal)), .replica_has_ended = true}});
  ++answers_->received;
}

}  // namespace colossal::serve
