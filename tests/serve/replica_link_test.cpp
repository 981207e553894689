// A replica at the other end of a socket: what arrives there, what comes back, and how either end notices the other's.
#include "colossal/serve/replicas/replica_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <limits>
#include <thread>

#include "colossal/base/error.h"
#include "serve/stand_in_replica.h"
#include "support/thrown_message.h"

namespace colossal::serve::replica_link_test {
namespace {

using infer::Event;
using infer::FinishReason;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::chrono::minutes kPlenty(1);
constexpr char kName[] = "replica 1 (ranks 2 to 3)", kLoss[] = "its first process has died";

std::pair<Descriptor, Descriptor> connected() {
  int pair[2];
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  return {Descriptor(pair[0]), Descriptor(pair[1])};
}

/// Collects the events of one generation.
class Listener {
 public:
  infer::OnEvent on_event() {
    return [this](const Event& event) {
      events_.push_back(event);
      if (event.finish_reason != FinishReason::None) ended_.set_value();
    };
  }
  /// Returns the events after the last one, or those so far after a long time.
  const std::vector<Event>& wait() {
    EXPECT_EQ(ended_.get_future().wait_for(kPlenty), std::future_status::ready);
    return events_;
  }
  const std::vector<Event>& so_far() const { return events_; }

 private:
  std::vector<Event> events_;
  std::promise<void> ended_;
};

Event event_of(int64_t token, FinishReason finish_reason = FinishReason::None) {
  return {.id = 5, .token = token, .finish_reason = finish_reason};
}

/// Waits until a condition holds that another thread makes true; false after a long time.
template <class Condition>
bool waits_until(const Condition& condition) {
  const auto limit = std::chrono::steady_clock::now() + kPlenty;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > limit) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

class Linked : public testing::Test {
 protected:
  Linked() {
    auto [own, other] = connected();
    remote.emplace(std::move(own), kName, kLoss, 8);
    link.emplace(std::move(other), fake, [this] { ended.set_value(); });
  }
  bool waits_for_end() { return ended.get_future().wait_for(kPlenty) == std::future_status::ready; }

  std::promise<void> ended;
  StandInReplica fake{100};
  std::optional<RemoteReplica> remote;
  std::optional<ReplicaLink> link;
};

TEST_F(Linked, PassesGenerationsOn) {
  std::vector<Generation> choices(3);
  choices[0].prompt = {3, 1, 4};
  choices[0].options = {.max_tokens = 7, .sampling = {.temperature = 0.3, .seed = -5}, .logprobs = 2};
  choices[0].options.json_schema = R"({"type": "string"})";
  choices[0].ignores_end = true;
  choices[0].client = "client", choices[0].cache_key = std::string("k\0y", 3);
  choices[1].after = 0;
  choices[2].prompt.assign(1000000, 9);
  EXPECT_EQ(remote->add(choices), 1);
  const Generation got = fake.generation(100);
  EXPECT_THAT(got.prompt, ElementsAre(3, 1, 4));
  EXPECT_EQ(got.options.max_tokens, 7);
  EXPECT_EQ(got.options.sampling.temperature, 0.3);
  EXPECT_EQ(got.options.sampling.seed, -5);
  EXPECT_EQ(got.options.logprobs, 2);
  EXPECT_EQ(got.options.json_schema, choices[0].options.json_schema);
  EXPECT_TRUE(got.ignores_end);
  EXPECT_EQ(got.client, "client");
  EXPECT_EQ(got.cache_key, choices[0].cache_key);
  EXPECT_EQ(got.after, -1);
  EXPECT_EQ(fake.generation(101).after, 0);
  EXPECT_EQ(fake.generation(102).prompt, choices[2].prompt);
  EXPECT_EQ(remote->add(only({.prompt = {1}, .after = -1})), 4);
  EXPECT_EQ(fake.generation(103).after, -1);
}

TEST_F(Linked, PassesSchemasOn) {
  remote->prepare(R"({"const": 1})"), remote->prepare("{}");
  EXPECT_THAT(fake.prepared(2), ElementsAre(R"({"const": 1})", "{}"));
}

TEST_F(Linked, ReturnsEventsInOrder) {
  Listener first, second;
  std::vector<Generation> two(2);
  two[0].on_event = first.on_event(), two[1].on_event = second.on_event();
  remote->add(std::move(two));
  const auto to_first = fake.generation(100).on_event, to_second = fake.generation(101).on_event;
  constexpr int64_t kEvents = 2000;
  std::thread engine([&] {
    for (int64_t i = 0; i < kEvents; ++i) to_first(event_of(i)), to_second(event_of(-i));
    to_first(event_of(7, FinishReason::AtEnd)), to_second(event_of(-1, FinishReason::AtPositions));
  });
  engine.join();
  ASSERT_EQ(first.wait().size(), kEvents + 1U);
  ASSERT_EQ(second.wait().size(), kEvents + 1U);
  for (int64_t i = 0; i < kEvents; ++i) {
    EXPECT_EQ(first.so_far()[i].token, i);
    EXPECT_EQ(second.so_far()[i].token, -i);
  }
  EXPECT_EQ(first.so_far().back().finish_reason, FinishReason::AtEnd);
  EXPECT_EQ(first.so_far().back().token, 7);
  EXPECT_EQ(second.so_far().back().finish_reason, FinishReason::AtPositions);
}

TEST_F(Linked, ReturnsAllOfAnEvent) {
  Listener listener;
  remote->add(only({.on_event = listener.on_event()}));
  Event event = event_of(12, FinishReason::Failed);
  event.error = "[a-z] ended: \xff\x01";  // of the request, although it begins like one of an engine
  event.found = 64;
  event.log_probabilities = {-0.1, {{12, -0.1}, {13, -std::numeric_limits<double>::infinity()}}};
  event.prompt_log_probabilities = {{-1.0 / 3, {}}, {-2, {{1, -2}}}};
  fake.generation(100).on_event(event);
  const Event got = listener.wait().at(0);
  EXPECT_EQ(got.token, 12);
  EXPECT_EQ(got.error, event.error);
  EXPECT_EQ(got.found, 64);
  ASSERT_TRUE(got.log_probabilities.has_value());
  EXPECT_EQ(got.log_probabilities->own, -0.1);
  EXPECT_EQ(got.log_probabilities->best, event.log_probabilities->best);
  ASSERT_EQ(got.prompt_log_probabilities.size(), 2U);
  EXPECT_EQ(got.prompt_log_probabilities[0].own, -1.0 / 3);
  EXPECT_TRUE(got.prompt_log_probabilities[0].best.empty());
  EXPECT_EQ(got.prompt_log_probabilities[1].best, event.prompt_log_probabilities[1].best);
}

TEST_F(Linked, ReturnsVectors) {
  std::promise<Vectors> good, bad;
  EXPECT_EQ(remote->add({.texts = {{1, 2}, {}}, .on_vectors = [&](Vectors v) { good.set_value(std::move(v)); }}), 1);
  EXPECT_EQ(remote->add({.texts = {{3}}, .on_vectors = [&](Vectors v) { bad.set_value(std::move(v)); }}), 2);
  EXPECT_THAT(fake.embedding(100).texts, ElementsAre(ElementsAre(1, 2), ElementsAre()));
  fake.embedding(101).on_vectors({.error = "too long"});
  fake.embedding(100).on_vectors({.rows = {{0.5F, -1}, {1.0F / 3}}});
  EXPECT_THAT(good.get_future().get().rows, ElementsAre(ElementsAre(0.5F, -1), ElementsAre(1.0F / 3)));
  EXPECT_EQ(bad.get_future().get().error, "too long");
}

TEST_F(Linked, NamesTheReplicaInErrorsOfADrawingThatEndIt) {
  const auto error_after = [&](bool replica_has_ended) {
    std::promise<Drawn> drawn;
    const Ticket ticket = remote->draw({.on_end = [&](Drawn one) { drawn.set_value(std::move(one)); }}).value_or(0);
    const std::exception_ptr error = std::make_exception_ptr(Error("comm", "rank 1 has died"));
    fake.drawing(99 + ticket).on_end({.error = error, .replica_has_ended = replica_has_ended});
    const Drawn got = drawn.get_future().get();
    EXPECT_EQ(got.replica_has_ended, replica_has_ended);
    return test::thrown_message([&] { std::rethrow_exception(got.error); });
  };
  EXPECT_EQ(error_after(false), "[comm] rank 1 has died");
  EXPECT_EQ(error_after(true), "[serve] replica 1 (ranks 2 to 3): [comm] rank 1 has died");
}

TEST_F(Linked, NamesTheReplicaInErrorsOfItsEngine) {
  Listener listener;
  std::promise<Vectors> vectors;
  remote->add(only({.on_event = listener.on_event()}));
  remote->add({.on_vectors = [&](Vectors v) { vectors.set_value(std::move(v)); }});
  Event event = event_of(-1, FinishReason::EngineEnded);
  event.error = "[comm] group \"tensor\": rank 1 has died";
  fake.generation(100).on_event(event);
  fake.embedding(101).on_vectors({.error = event.error, .engine_has_ended = true});
  const std::string named = concat(kName, ": ", event.error);
  EXPECT_EQ(listener.wait().at(0).error, named);
  const Vectors got = vectors.get_future().get();
  EXPECT_EQ(got.error, named);
  EXPECT_TRUE(got.engine_has_ended);
}

TEST_F(Linked, CancelsByTheTicketOfTheReplica) {
  Listener first, second;
  std::vector<Generation> two(2);
  two[0].on_event = first.on_event(), two[1].on_event = second.on_event();
  remote->add(std::move(two));
  remote->add({.texts = {{1}}, .on_vectors = [](Vectors) { ADD_FAILURE() << "it was cancelled"; }});
  const auto to_first = fake.generation(100).on_event, to_second = fake.generation(101).on_event;
  const auto to_third = fake.embedding(102).on_vectors;
  for (const Ticket ticket : {2, 2, 3, 99}) remote->cancel(ticket);
  EXPECT_THAT(fake.cancelled(2), ElementsAre(101, 102));
  to_second(event_of(1)), to_third({}), to_first(event_of(2, FinishReason::AtLength));
  EXPECT_EQ(first.wait().size(), 1U);
  EXPECT_TRUE(second.so_far().empty()) << "an event after the cancellation";
  remote->cancel(1);
  remote->add(only({}));
  fake.generation(103);
  EXPECT_THAT(fake.cancelled(2), ElementsAre(101, 102)) << "ticket 1 had ended";
}

TEST_F(Linked, ReportsLoadsThatChange) {
  fake.set_load({.waiting = 1, .running = 2, .blocks = 30, .blocks_used = 4});
  link->report_load(), link->report_load();
  ASSERT_TRUE(waits_until([&] { return remote->load().blocks_used == 4; }));
  const ReplicaLoad load = remote->load();
  EXPECT_EQ(load.waiting, 1);
  EXPECT_EQ(load.running, 2);
  EXPECT_EQ(load.blocks, 30);
}

// Work counts as waiting from add() until a report says that it runs.
TEST_F(Linked, CountsWaitingWorkWithoutTheOtherEnd) {
  std::vector<Generation> five(5);
  EXPECT_EQ(remote->add(five), 1);
  EXPECT_EQ(remote->load().waiting, 5);
  EXPECT_FALSE(remote->add(five).has_value()) << "room for 8";
  EXPECT_EQ(remote->add(Embedding{}), 6);
  fake.embedding(105);
  ASSERT_TRUE(waits_until([&] {
    fake.set_load({.waiting = 2, .running = 4});
    link->report_load();  // until the replica has all six
    return remote->load().waiting == 2;
  }));
  EXPECT_EQ(remote->load().running, 4);
  EXPECT_TRUE(remote->add(five).has_value());
  EXPECT_EQ(remote->load().waiting, 7);
}

TEST(RemoteReplica, RefusesWorkWithoutAskingTheOtherEnd) {
  auto [own, other] = connected();  // the other end is silent
  RemoteReplica remote(std::move(own), kName, kLoss, 3);
  EXPECT_EQ(remote.add(std::vector<Generation>(2)), 1);
  EXPECT_FALSE(remote.add(std::vector<Generation>(2)).has_value());
  EXPECT_EQ(remote.add(Embedding{}), 3);
  EXPECT_FALSE(remote.add(Embedding{}).has_value());
  EXPECT_EQ(remote.load().waiting, 3);
}

TEST_F(Linked, FailsUnfinishedWorkIfTheConnectionBreaks) {
  Listener ended_before, running, waiting;
  std::promise<std::string> of_vectors;
  std::vector<Generation> three(3);
  three[0].on_event = ended_before.on_event(), three[1].on_event = running.on_event();
  three[2].on_event = [](const Event&) { ADD_FAILURE() << "it was cancelled"; };
  remote->add(std::move(three));
  remote->add({.on_vectors = [&](Vectors vectors) { of_vectors.set_value(vectors.error); }});
  fake.generation(100).on_event(event_of(4, FinishReason::AtEnd));
  fake.generation(101).on_event(event_of(4));
  ended_before.wait();
  remote->cancel(3);
  fake.cancelled(1);
  EXPECT_FALSE(remote->error().has_value());
  link.reset();
  const Event last = running.wait().back();
  EXPECT_EQ(running.so_far().size(), 2U);
  EXPECT_EQ(last.finish_reason, FinishReason::EngineEnded);
  EXPECT_EQ(last.token, -1);
  EXPECT_EQ(last.error, "replica 1 (ranks 2 to 3) ended: its first process has died");
  EXPECT_EQ(of_vectors.get_future().get(), last.error);
  EXPECT_EQ(ended_before.so_far().size(), 1U);
  EXPECT_EQ(remote->error(), last.error);
  EXPECT_FALSE(remote->add(only({})).has_value());
  EXPECT_FALSE(remote->add(Embedding{}).has_value());
  EXPECT_EQ(remote->load().waiting, 0);
}

TEST_F(Linked, FailsUnfinishedWorkWithTheReasonOfTheOtherEnd) {
  Listener listener;
  remote->add(only({.on_event = listener.on_event()}));
  const auto on_event = fake.generation(100).on_event;
  link->end("[comm] group \"tensor\": rank 1 (process 7) has died");
  on_event(event_of(1));  // too late, and harmless
  EXPECT_EQ(listener.wait().back().error,
            "replica 1 (ranks 2 to 3) ended: [comm] group \"tensor\": rank 1 (process 7) has died");
  EXPECT_EQ(remote->error(), listener.so_far().back().error);
}

TEST_F(Linked, FailsWorkThatTheReplicaRefuses) {
  fake.refuse();
  Listener listener;
  std::promise<std::string> of_vectors;
  remote->add(only({.on_event = listener.on_event()}));
  remote->add({.on_vectors = [&](Vectors vectors) { of_vectors.set_value(vectors.error); }});
  EXPECT_EQ(listener.wait().back().finish_reason, FinishReason::EngineEnded);
  EXPECT_THAT(listener.so_far().back().error, HasSubstr("[serve] the replica takes no more work"));
  EXPECT_THAT(of_vectors.get_future().get(), HasSubstr("[serve] the replica takes no more work"));
}

TEST_F(Linked, StopsTheOtherEndWithoutEvents) {
  remote->add(only({.on_event = [](const Event&) { ADD_FAILURE() << "the server stops"; }}));
  fake.generation(100);
  EXPECT_FALSE(link->reason().has_value());
  remote->end("");
  EXPECT_TRUE(waits_for_end());
  EXPECT_EQ(link->reason(), "");
  fake.generation(100).on_event(event_of(1, FinishReason::AtEnd));
  link->end("");
  EXPECT_FALSE(remote->error().has_value());
}

TEST_F(Linked, StopsTheOtherEndWithAnError) {
  Listener listener;
  remote->add(only({.on_event = listener.on_event()}));
  remote->end("[comm] rank 1 of 4 has died");
  EXPECT_EQ(listener.wait().back().error, "[comm] rank 1 of 4 has died");
  EXPECT_TRUE(waits_for_end());
  EXPECT_EQ(link->reason(), "[comm] rank 1 of 4 has died");
}

TEST_F(Linked, NoticesThatRankZeroIsGone) {
  remote.reset();
  EXPECT_TRUE(waits_for_end());
  EXPECT_FALSE(link->reason().has_value());
}

// Another process answers, and is killed after its third event.
TEST(RemoteReplica, FailsWorkOfAKilledProcess) {
  auto [own, other] = connected();
  const pid_t child = fork();
  if (child == 0) {
    own = Descriptor();
    StandInReplica fake;
    ReplicaLink link(std::move(other), fake, [] {});
    const auto on_event = fake.generation(1).on_event;
    for (int64_t i = 0; i < 3; ++i) on_event(event_of(i));
    pause();
    _exit(0);
  }
  other = Descriptor();
  RemoteReplica remote(std::move(own), kName, kLoss, 8);
  Listener listener;
  std::atomic<int> events = 0;
  remote.add(only({.on_event = [&, on_event = listener.on_event()](const Event& event) {
    on_event(event);
    ++events;
  }}));
  EXPECT_TRUE(waits_until([&] { return events == 3; }));
  kill(child, SIGKILL);
  EXPECT_EQ(listener.wait().size(), 4U);
  EXPECT_EQ(listener.so_far()[2].token, 2);
  EXPECT_EQ(listener.so_far()[3].error, "replica 1 (ranks 2 to 3) ended: its first process has died");
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
}

TEST(ReplicaMessages, RefuseForeignBytes) {
  const std::string bytes = message_bytes(EventMessage{4, event_of(1, FinishReason::AtEnd)});
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_THAT(test::thrown_message([&] { message_of(bytes.substr(0, size)); }),
                HasSubstr("[serve] messages of a replica must be bytes of this program"))
        << size;
  EXPECT_THAT(test::thrown_message([&] { message_of(bytes + "x"); }), HasSubstr("messages of a replica must be"));
  EXPECT_THAT(test::thrown_message([&] { message_of("\x09"); }),
              HasSubstr("[serve] a message of a replica must be of a known kind: got 9"));
}

}  // namespace
}  // namespace colossal::serve::replica_link_test
