// Requests that choose adapters by their name, over a scripted replica.
#include "serve/test_service.h"
#include "support/thrown_message.h"

namespace colossal::serve_test::adapter_routes_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char *kCompletions = "/v1/completions", *kChats = "/v1/chat/completions";

/// A server of the model "tiny" with the adapters "poet", which has a chat template, and "coder".
class AdapterRoutes : public testing::Test {
 protected:
  AdapterRoutes() : test(TestOptions{.opens = false}) {
    serve::ServedModel model = test.model();
    model.demands_name = true;
    model.adapters = {{"poet", &of_poet}, {"coder"}};
    test.service.open(model, test.replica);
  }

  static std::string chat_of(const std::string& model) {
    return Json{{"model", model}, {"messages", {{{"role", "user"}, {"content", "Hi"}}}}}.dump();
  }
  std::string last_prompt() const {
    const std::vector<int64_t> ids = test.replica.added().back().prompt;
    return {ids.begin(), ids.end()};
  }

  text::ChatTemplate of_poet{"{% for message in messages %}<{{ message.content }}>{% endfor %}"};
  TestService test;
};

TEST_F(AdapterRoutes, ListModelAndAdapters) {
  const Json list = Json::parse(test.get("/v1/models").body)["data"];
  ASSERT_EQ(list.size(), 3U);
  EXPECT_EQ(list[0]["id"], "tiny");
  EXPECT_FALSE(list[0].contains("parent"));
  for (const auto& [i, name] : {std::pair{1, "poet"}, {2, "coder"}}) {
    EXPECT_EQ(list[i]["id"], name);
    EXPECT_EQ(list[i]["parent"], "tiny");
    EXPECT_EQ(list[i]["max_model_len"], 64);
    EXPECT_EQ(Json::parse(test.get(concat("/v1/models/", name)).body), list[i]);
  }
  EXPECT_EQ(Json::parse(test.get("/v1/models/tiny").body), list[0]);
}

TEST_F(AdapterRoutes, PassTheAdapterToTheReplica) {
  for (const auto& [model, adapter] : {std::pair{"tiny", ""}, {"poet", "poet"}, {"coder", "coder"}}) {
    const Json body{{"model", model}, {"prompt", {"a", "b"}}, {"n", 2}};
    EXPECT_EQ(test.answer(kCompletions, body.dump())["model"], model);
    const std::vector<serve::Generation> added = test.replica.added();
    for (size_t i = added.size() - 4; i < added.size(); ++i) EXPECT_EQ(added[i].adapter, adapter) << i;
    EXPECT_EQ(test.answer(kChats, chat_of(model))["model"], model);
    EXPECT_EQ(test.replica.added().back().adapter, adapter);
  }
  EXPECT_EQ(test.answer(kCompletions, R"({"prompt": "a"})")["model"], "tiny");
  EXPECT_EQ(test.replica.added().back().adapter, "");
}

TEST_F(AdapterRoutes, NameTheAdapterInEachEvent) {
  const Stream stream = test.stream(kCompletions, R"({"model": "poet", "prompt": "a", "stream": true})");
  EXPECT_TRUE(stream.is_done);
  ASSERT_FALSE(stream.events.empty());
  for (const Json& event : stream.events) EXPECT_EQ(event["model"], "poet") << event;
}

TEST_F(AdapterRoutes, RenderChatsByTheAdaptersTemplate) {
  test.answer(kChats, chat_of("poet"));
  EXPECT_EQ(last_prompt(), "<Hi>");
  for (const char* model : {"tiny", "coder"}) {
    test.answer(kChats, chat_of(model));
    EXPECT_EQ(last_prompt(), "user:Hi;assistant:");
  }
  EXPECT_EQ(test.answer("/tokenize", chat_of("poet"))["count"], 4);
  EXPECT_EQ(test.answer("/tokenize", chat_of("coder"))["count"], 18);
}

TEST_F(AdapterRoutes, RefuseOtherNames) {
  const auto expect_absent = [](const http::Reply& reply) {
    EXPECT_EQ(reply.status, 404);
    const Json error = Json::parse(reply.body)["error"];
    EXPECT_EQ(error["code"], "model_not_found");
    EXPECT_EQ(error["param"], "model");
    EXPECT_EQ(error["message"], "the model Poet does not exist: this server has tiny, poet, coder");
  };
  for (const auto& [path, member] : {std::pair{kCompletions, R"("prompt": "a")"},
                                     {kChats, R"("messages": [{"role": "user", "content": "Hi"}])"},
                                     {"/v1/embeddings", R"("input": "a")"},
                                     {"/tokenize", R"("prompt": "a")"},
                                     {"/detokenize", R"("tokens": [1])"}}) {
    SCOPED_TRACE(path);
    expect_absent(test.post(path, concat(R"({"model": "Poet", )", member, "}")));
  }
  expect_absent(test.get("/v1/models/Poet"));
  EXPECT_THAT(test.replica.added(), IsEmpty());
}

TEST_F(AdapterRoutes, EmbedWithTheModelItself) {
  test.replica.play_vectors({.rows = {{1, 2}}});
  EXPECT_EQ(test.answer("/v1/embeddings", R"({"input": "a", "model": "tiny"})")["model"], "tiny");
  EXPECT_EQ(test.post("/v1/embeddings", R"({"input": "a"})").status, 200);
  const http::Reply reply = test.post("/v1/embeddings", R"({"input": "a", "model": "poet"})");
  EXPECT_EQ(reply.status, 400);
  const Json error = Json::parse(reply.body)["error"];
  EXPECT_EQ(error["param"], "model");
  EXPECT_EQ(error["message"],
            "model must be tiny for embeddings: got poet, which is an adapter and continues text only");
}

TEST(ServedModel, DemandsNamesIfItHasAdapters) {
  TestService test(TestOptions{.opens = false});
  serve::ServedModel model = test.model();
  model.adapters.push_back({.name = "poet"});
  EXPECT_THAT(test::thrown_message([&] { test.service.open(model, test.replica); }),
              HasSubstr("requests must name the model or an adapter if there are adapters"));
}

}  // namespace
}  // namespace colossal::serve_test::adapter_routes_test
