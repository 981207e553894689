// The rendezvous store: the processes that can reach it, and the possible effects of strangers.
#include "colossal/comm/store.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <thread>

#include "colossal/base/descriptor.h"
#include "colossal/base/error.h"
#include "colossal/comm/launch/rendezvous.h"
#include "colossal/comm/seal.h"
#include "support/thrown_message.h"

namespace colossal::test::store_test {
namespace {

using comm::Seal;
using comm::Store;
using std::chrono::milliseconds;
using testing::HasSubstr;

bool accepts(const char* address, uint16_t port) {
  const Descriptor caller(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  inet_pton(AF_INET, address, &to.sin_addr);
  return connect(caller.value(), reinterpret_cast<sockaddr*>(&to), sizeof to) == 0;
}

TEST(StoreServer, ListensOnlyOnTheLoopbackAddress) {
  for (const char* host : {"127.0.0.1", "localhost"}) {
    Store::Tcp tcp;
    tcp.host = host;
    tcp.server = true;
    const auto server = Store::tcp(tcp);
    ASSERT_GT(server->port(), 0);
    EXPECT_TRUE(accepts("127.0.0.1", server->port()));
    EXPECT_FALSE(accepts("127.0.0.2", server->port())) << "another address of this host, as a stranger would use";
    tcp.server = false;
    tcp.port = server->port();
    Store::tcp(tcp)->set("key", "value");
    EXPECT_EQ(server->get("key", milliseconds(20000), "the value"), "value");
  }
}

TEST(StoreServer, ReportsAPortInUse) {
  Store::Tcp tcp;
  tcp.host = "127.0.0.1";
  tcp.server = true;
  const auto first = Store::tcp(tcp);
  tcp.port = first->port();
  EXPECT_THAT(thrown_message([&] { Store::tcp(tcp); }), HasSubstr("is in use on this host; set MASTER_PORT"));
}

TEST(StoreServer, AppearsInTheErrorIfItEnds) {
  Store::Tcp tcp;
  tcp.host = "127.0.0.1";
  tcp.server = true;
  auto server = Store::tcp(tcp);
  tcp.port = server->port();
  tcp.server = false;
  const auto client = Store::tcp(tcp);
  std::thread end([&] {
    server->get("here/0", milliseconds(60000), "the client");
    server.reset();
  });
  const std::string message =
      thrown_message([&] { comm::gather_texts({client, "the run", 0, 2, milliseconds(60000)}, "here"); });
  end.join();
  EXPECT_THAT(message, testing::StartsWith("[launch] waited ")) << "and not an error of c10d";
  EXPECT_THAT(message, HasSubstr(" s for the run ("));
}

// This simulates a stopped process, or a program that is no store: the system connects to it, but no answer arrives.
TEST(StoreServer, AppearsInTheErrorIfItNeverAnswers) {
  const Descriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  ASSERT_EQ(bind(listener.value(), reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(listen(listener.value(), 8), 0);
  getsockname(listener.value(), reinterpret_cast<sockaddr*>(&address), &length);
  Store::Tcp tcp;
  tcp.host = "127.0.0.1";
  tcp.port = ntohs(address.sin_port);
  tcp.limit = milliseconds(1000);
  EXPECT_EQ(thrown_message([&] { Store::tcp(tcp); }), concat("[launch] the store at 127.0.0.1:", tcp.port,
                                                             " has not answered for 11 s; check that its process and ",
                                                             "host run and that no other program listens there"));
}

TEST(KeyedHash, IsSipHash) {  // the example of the paper that defines it
  std::string text;
  for (char c = 0; c < 15; ++c) text += c;
  EXPECT_EQ(comm::keyed_hash({0x0706050403020100, 0x0f0e0d0c0b0a0908}, text), 0xa129ca6149be45e5);
}

TEST(RandomText, NeverRepeats) {
  EXPECT_EQ(comm::random_text().size(), 32u);
  EXPECT_NE(comm::random_text(), comm::random_text());
}

TEST(SealedValue, OpensOnlyWithItsNameAndSecret) {
  const Seal seal("secret");
  const std::string closed = seal.close("name", "value");
  EXPECT_EQ(seal.open("name", closed), "value");
  EXPECT_EQ(seal.open("other", closed), std::nullopt);
  EXPECT_EQ(Seal("Secret").open("name", closed), std::nullopt);
  EXPECT_EQ(Seal("").open("name", closed), std::nullopt);
  EXPECT_EQ(seal.open("nam", seal.close("name", "")), std::nullopt);
  for (size_t i = 0; i < closed.size(); ++i) {
    std::string changed = closed;
    changed[i] ^= 1;
    EXPECT_EQ(seal.open("name", changed), std::nullopt) << "letter " << i;
    EXPECT_EQ(seal.open("name", closed.substr(0, i)), std::nullopt) << "cut to " << i;
  }
}

class SealedStore : public testing::Test {
 protected:
  std::shared_ptr<Store> open_ = Store::in_memory();
  std::vector<std::string> notes_;
  std::shared_ptr<Store> sealed_ = open_->sealed("secret", [this](const std::string& text) { notes_.push_back(text); });
};

TEST_F(SealedStore, IgnoresForgedValuesAndReportsThemOnce) {
  const auto watchdog = sealed_->with_prefix("watchdog");
  EXPECT_EQ(watchdog->find("verdict"), std::nullopt);
  EXPECT_TRUE(notes_.empty());
  open_->with_prefix("watchdog")->set("verdict", "the run is over");
  EXPECT_EQ(watchdog->find("verdict"), std::nullopt);
  EXPECT_EQ(watchdog->find("verdict"), std::nullopt);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_THAT(notes_[0], HasSubstr("ignored a value of \"watchdog/verdict\""));
  watchdog->set("verdict", "rank 1 is late");
  EXPECT_EQ(sealed_->with_prefix("watchdog")->find("verdict"), "rank 1 is late");
  EXPECT_EQ(watchdog->get("verdict", milliseconds(20000), "the verdict"), "rank 1 is late");
}

TEST_F(SealedStore, RefusesAValueUnderAnotherKey) {
  sealed_->with_prefix("a")->set("key", "value");
  open_->with_prefix("b")->set("key", open_->with_prefix("a")->find("key").value());
  EXPECT_EQ(sealed_->with_prefix("a")->find("key"), "value");
  EXPECT_EQ(sealed_->with_prefix("b")->find("key"), std::nullopt);
}

TEST_F(SealedStore, ReportsDifferentSecrets) {
  const auto other = open_->sealed("another", nullptr);
  const std::string message = thrown_message([&] {
    other->set("here/1", "here");
    comm::gather_texts({sealed_, "the run", 0, 2, milliseconds(300)}, "here");
  });
  EXPECT_THAT(message, HasSubstr("set the same COLOSSAL_SECRET on all ranks"));
}

}  // namespace
}  // namespace colossal::test::store_test
