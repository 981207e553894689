#include "colossal/serve/replicas/replica_messages.h"

#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/serve/byte_stream.h"
#include "colossal/serve/field_bytes.h"

namespace colossal::serve {
namespace {

// Each pass_values() writes or reads all members of a message, so that both have the same order.

template <class Bytes, class Scores>
void pass_scores(Bytes& bytes, Scores& scores) {
  bytes(scores.own);
  bytes.each(scores.best, [&bytes](auto& entry) { bytes(entry.first), bytes(entry.second); });
}

void pass_scores(ByteWriter& bytes, const std::optional<infer::LogProbabilities>& scores) {
  bytes(scores.has_value());
  if (scores) pass_scores(bytes, *scores);
}

void pass_scores(ByteReader& bytes, std::optional<infer::LogProbabilities>& scores) {
  bool has_value = false;
  bytes(has_value);
  if (has_value) pass_scores(bytes, scores.emplace());
}

template <class Bytes, class Message>
void pass_event(Bytes& bytes, Message& message) {
  auto& event = message.event;
  bytes(message.ticket), bytes(event.token), bytes(event.error), bytes(event.found);
  pass_scores(bytes, event.log_probabilities);
  bytes.each(event.prompt_log_probabilities, [&bytes](auto& scores) { pass_scores(bytes, scores); });
}

void pass_values(ByteWriter& bytes, const EventMessage& message) {
  bytes(static_cast<int64_t>(message.event.finish_reason));
  pass_event(bytes, message);
}

void pass_values(ByteReader& bytes, EventMessage& message) {
  int64_t finish_reason = 0;
  bytes(finish_reason);
  message.event.id = -1;
  message.event.finish_reason = static_cast<infer::FinishReason>(finish_reason);
  pass_event(bytes, message);
}

template <class Bytes, class Message>
void pass_vectors(Bytes& bytes, Message& message) {
  bytes(message.ticket), bytes(message.vectors.rows), bytes(message.vectors.error);
  bytes(message.vectors.engine_has_ended);
}
void pass_values(ByteWriter& bytes, const VectorsMessage& message) { pass_vectors(bytes, message); }
void pass_values(ByteReader& bytes, VectorsMessage& message) { pass_vectors(bytes, message); }

template <class Bytes, class Message>
void pass_drawing(Bytes& bytes, Message& message) {
  bytes(message.ticket);
  FieldBytes<Bytes> fields(bytes);
  message.job.options.fields(fields);
  pass_texts(bytes, message.job.files);
}
void pass_values(ByteWriter& bytes, const NewDrawing& message) {
  NewDrawing written{message.ticket,
                     {.options = message.job.options, .files = message.job.files}};  // fields() is not const
  pass_drawing(bytes, written);
}
void pass_values(ByteReader& bytes, NewDrawing& message) { pass_drawing(bytes, message); }

void pass_error(ByteWriter& bytes, const std::exception_ptr& error) {
  std::string component, message;
  try {
    if (error) std::rethrow_exception(error);
  } catch (const Error& known) {
    component = known.component(), message = known.message();
  } catch (const std::exception& other) {
    component = "draw", message = plain_message(other);
  }
  bytes(component), bytes(message);
}

void pass_error(ByteReader& bytes, std::exception_ptr& error) {
  std::string component, message;
  bytes(component), bytes(message);
  if (!component.empty()) error = std::make_exception_ptr(Error(component, message));
}

template <class Bytes, class Message>
void pass_drawn(Bytes& bytes, Message& message) {
  bytes(message.ticket);
  bytes.each(message.drawn.pictures, [&bytes](auto& picture) {
    bytes(picture.png), bytes(picture.seed), bytes(picture.sampler), bytes(picture.steps), bytes(picture.seconds),
        bytes(picture.note);
  });
  bytes(message.drawn.notices);
  pass_error(bytes, message.drawn.error);
  bytes(message.drawn.replica_has_ended);
}
void pass_values(ByteWriter& bytes, const DrawnMessage& message) { pass_drawn(bytes, message); }
void pass_values(ByteReader& bytes, DrawnMessage& message) { pass_drawn(bytes, message); }

template <class Bytes, class Message>
void pass_load(Bytes& bytes, Message& message) {
  auto& load = message.load;
  bytes(message.received), bytes(load.waiting), bytes(load.running), bytes(load.blocks), bytes(load.blocks_used);
}
void pass_values(ByteWriter& bytes, const LoadMessage& message) { pass_load(bytes, message); }
void pass_values(ByteReader& bytes, LoadMessage& message) { pass_load(bytes, message); }

void pass_values(ByteWriter& bytes, const EndMessage& message) { bytes(message.reason); }
void pass_values(ByteReader& bytes, EndMessage& message) { bytes(message.reason); }

void pass_values(ByteWriter& bytes, const Changes& changes) { bytes(to_bytes(changes)); }
void pass_values(ByteReader& bytes, Changes& changes) {
  std::string text;
  bytes(text);
  changes = changes_of(text);
}

template <class Message>
ReplicaMessage read_as(ByteReader& bytes) {
  Message message;
  pass_values(bytes, message);
  bytes.check_end();
  return message;
}

}  // namespace

std::string message_bytes(const ReplicaMessage& message) {
  ByteWriter bytes;
  bytes(static_cast<uint8_t>(message.index()));
  std::visit([&bytes](const auto& values) { pass_values(bytes, values); }, message);
  return bytes.take();
}

ReplicaMessage message_of(const std::string& bytes) {
  using Read = ReplicaMessage (*)(ByteReader&);
  constexpr Read kReads[] = {read_as<Changes>,        read_as<NewDrawing>,   read_as<EventMessage>,
                             read_as<VectorsMessage>, read_as<DrawnMessage>, read_as<LoadMessage>,
                             read_as<EndMessage>};  // in the order of the variant
  static_assert(std::size(kReads) == std::variant_size_v<ReplicaMessage>);
  ByteReader reader(bytes, "messages of a replica");
  uint8_t kind = 0;
  reader(kind);
  require(kind < std::size(kReads), "serve", "a message of a replica must be of a known kind: got ", int{kind},
          "; run the same program on all ranks");
  return kReads[kind](reader);
}

}  // namespace colossal::serve
