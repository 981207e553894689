// POST /v1/images/generations, with a function that stands for a model and returns what it was asked for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "colossal/base/base64.h"
#include "colossal/comm/run_ranks.h"
#include "colossal/diffusion/drawing.h"
#include "colossal/serve/drawing_loop.h"
#include "serve/test_service.h"

namespace colossal::serve_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using namespace std::string_literals;

constexpr char kImages[] = "/v1/images/generations";

/// A server whose pictures are texts: the options of the picture.
class PictureServer {
 public:
  explicit PictureServer(int64_t max_waiting = 2, bool draws_classes = false)
      : service({.defaults = serve::request_defaults({}, {}), .limits = {.max_waiting = max_waiting}, .draws = true}),
        server({.port = 0, .on_end = [this](const http::RequestEnd& end) { service.log_end(end); }},
               serve::routes(service)) {
    std::promise<serve::DrawingLoop*> made;
    std::future<serve::DrawingLoop*> loop = made.get_future();
    thread_ = std::thread([this, max_waiting, own = std::move(made)]() mutable {
      comm::run_ranks(1, [&](comm::World& world) {
        comm::Mesh mesh(world, {});
        serve::DrawingLoop own_loop(
            world, mesh, {.draw = [this](const auto&... what) { return draw(what...); }, .max_waiting = max_waiting});
        own.set_value(&own_loop);
        own_loop.run({});
      });
    });
    loop_ = loop.get();
    service.open({.name = "tiny",
                  .created = 1700000000,
                  .check_drawing =
                      [](const diffusion::DrawOptions& options, const diffusion::GivenFiles& files) {
                        require(!files.contains("control_image") || files.at("control_image") != "broken", "data",
                                "control_image is no picture");
                        require(options.size.empty() || options.pixels().width % 8 == 0, "draw",
                                "the sides of size must be multiples of 8 pixels: got ", options.size);
                      },
                  .draws_classes = draws_classes},
                 *loop_);
  }
  ~PictureServer() {
    is_held = false;
    server.stop();
    loop_->end();
    thread_.join();
  }

  http::Reply post(const std::string& body, const std::string& path = kImages) const {
    return http::Client({.url = server.url(), .timeout = 60}).post(path, body);
  }
  http::Reply get(const std::string& path) const {
    return http::Client({.url = server.url(), .timeout = 60}).get(path);
  }
  /// Returns the answer and its pictures, decoded.
  std::pair<Json, std::vector<std::string>> answer(const std::string& body) const {
    const http::Reply reply = post(body);
    EXPECT_EQ(reply.status, 200) << reply.body;
    Json json = Json::parse(reply.body, nullptr, false);
    std::vector<std::string> pictures;
    for (const Json& one : json["data"]) pictures.push_back(from_base64(one["b64_json"].get<std::string>()).value());
    return {json, pictures};
  }
  serve::ReplicaLoad load() const { return loop_->load(); }

  std::atomic<bool> is_held = false;  ///< drawings do not end
  std::atomic<int> stopped = 0;       ///< drawings that were asked to stop
  serve::Service service;
  http::Server server;

 private:
  std::vector<std::string> draw(const diffusion::DrawOptions& options, const diffusion::GivenPictures& given,
                                const std::function<void(const diffusion::DrawnPicture&)>& take) {
    require(options.prompt != "fail", "draw", "the model must not fail in /secret/folder");
    while (is_held) {
      if (given.stop_requested() && ++stopped > 0) throw diffusion::StoppedDrawing();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    for (int64_t k = 0; k < options.count; ++k)
      take({.png = concat(options.prompt, "|", options.negative, "|", options.drawn, "|", options.size, "|",
                          options.steps, "|", options.guidance, "|", options.seed + k,
                          options.control_image.empty() ? "" : "|" + given.files.at(options.control_image),
                          options.ip_image.empty() ? "" : "|resembles " + given.files.at(options.ip_image)),
            .seed = options.seed + k});
    if (options.prompt == "long") return {"words are lost"};
    return {};
  }

  serve::DrawingLoop* loop_ = nullptr;
  std::thread thread_;
};

TEST(ImageRoute, DrawsByTheOptionsOfTheRequest) {
  const PictureServer server;
  const auto [json, pictures] = server.answer(
      R"({"model": "any", "prompt": "a cat", "negative_prompt": "a dog", "n": 2, "size": "64x32", "seed": 5,
          "num_inference_steps": 3, "guidance_scale": 2.5, "response_format": "b64_json", "user": "ann",
          "quality": "auto", "moderation": "low"})");
  EXPECT_EQ(pictures, (std::vector<std::string>{"a cat|a dog||64x32|3|2.5|5", "a cat|a dog||64x32|3|2.5|6"}));
  EXPECT_EQ(json["data"][1]["seed"], 6);
  EXPECT_GT(json["created"], 1700000000);
  EXPECT_FALSE(json.contains("warnings"));
}

TEST(ImageRoute, HasTheDefaultsOfDraw) {
  const PictureServer server;
  const diffusion::DrawOptions defaults;
  const std::string wanted = concat("a cat||||", defaults.steps, "|", defaults.guidance, "|3");
  EXPECT_EQ(server.answer(R"({"prompt": "a cat", "seed": 3, "size": "auto"})").second.at(0), wanted);
}

TEST(ImageRoute, DrawsAlongAControlPictureAndAnImagePrompt) {
  const PictureServer server;
  const std::string file = "\x89PNG\0"s + "file";
  for (const std::string start : {"", "data:image/png;base64,"}) {
    const Json body{{"prompt", "a cat"}, {"seed", 3}, {"control_image", start + base64(file)}, {"control_strength", 1}};
    EXPECT_THAT(server.answer(body.dump()).second.at(0), testing::EndsWith("|3|" + file));
    const Json resembled{{"prompt", "a cat"}, {"seed", 3}, {"ip_adapter_image", start + base64(file)}};
    EXPECT_THAT(server.answer(resembled.dump()).second.at(0), testing::EndsWith("|3|resembles " + file));
  }
}

TEST(ImageRoute, SaysTheSeedsThatItDraws) {
  const PictureServer server;
  const Json first = server.answer(R"({"prompt": "a", "n": 2})").first["data"];
  const int64_t seed = first[1]["seed"];
  EXPECT_EQ(seed, first[0]["seed"].get<int64_t>() + 1);
  EXPECT_NE(server.answer(R"({"prompt": "a"})").first["data"][0]["seed"], first[0]["seed"]);
  EXPECT_EQ(server.answer(concat(R"({"prompt": "a", "seed": )", seed, "}")).first["data"][0], first[1]);
}

TEST(ImageRoute, DrawsAClassByItsName) {
  const PictureServer server(2, /*draws_classes=*/true);
  EXPECT_THAT(server.answer(R"({"prompt": "star"})").second.at(0), testing::StartsWith("||star|"));
}

TEST(ImageRoute, ShowsTheClientItsLostWords) {
  const PictureServer server;
  EXPECT_EQ(server.answer(R"({"prompt": "long"})").first["warnings"], Json::array({"words are lost"}));
}

TEST(ImageRoute, RefusesWhatItDoesNotDraw) {
  const PictureServer server;
  const std::vector<std::array<std::string, 3>> rows{
      {R"({})", "prompt must be a text", "prompt"},
      {R"({"prompt": ""})", "what to draw must be given", ""},
      {R"({"prompt": "a", "n": 11})", "n must be a whole number from 1 to 10: got 11", "n"},
      {R"({"prompt": "a", "size": "12x8"})", "multiples of 8 pixels: got 12x8", ""},
      {R"({"prompt": "a", "size": "12"})", "size must be a width and a height in pixels", "size"},
      {R"({"prompt": "a", "size": "8192x8192"})", "size must be at most 4194304 pixels", "size"},
      {R"({"prompt": "a", "response_format": "url"})", "response_format must be \"b64_json\"", "response_format"},
      {R"({"prompt": "a", "guidance_scale": 0})", "guidance_scale must be above 0", "guidance_scale"},
      {R"({"prompt": "a", "num_inference_steps": 0})", "num_inference_steps must be", "num_inference_steps"},
      {R"({"prompt": "a", "seed": 1.5})", "seed must be a whole number", "seed"},
      {R"({"prompt": "a", "steps": 4})", "use num_inference_steps", "steps"},
      {R"({"prompt": "a", "control_image": "no!"})", "control_image must be the base64 of a PNG", "control_image"},
      {R"({"prompt": "a", "control_image": "YnJva2Vu"})", "control_image is no picture", ""},
      {R"({"prompt": "a", "control_strength": 0.5})", "--control FOLDER:SCALE", "control_strength"},
      {R"({"prompt": "a", "output_format": "webp"})", "PNG", "output_format"}};
  for (const auto& [body, message, param] : rows) {
    const http::Reply reply = server.post(body);
    EXPECT_EQ(reply.status, 400) << body;
    const Json error = Json::parse(reply.body, nullptr, false)["error"];
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(message));
    EXPECT_EQ(error["param"].is_null() ? "" : error["param"].get<std::string>(), param) << body;
  }
}

TEST(ImageRoute, LetsOthersWaitWithinTheQueue) {
  PictureServer server(/*max_waiting=*/2);
  server.is_held = true;
  std::vector<std::future<http::Reply>> replies;
  for (int k = 0; k < 3; ++k) {
    replies.push_back(std::async(std::launch::async, [&] { return server.post(R"({"prompt": "a"})"); }));
    const auto is_there = [&] { return server.load().waiting + server.load().running == k + 1; };
    ASSERT_TRUE(TestService::wait_for([&] { return is_there() && server.load().running == 1; }));
  }
  EXPECT_THAT(server.get("/metrics").body, HasSubstr("\ncolossal_requests_waiting 2\n"));
  const http::Reply refused = server.post(R"({"prompt": "a"})");
  EXPECT_EQ(refused.status, 429);
  EXPECT_THAT(refused.body, HasSubstr("the queue is full: 2 requests may wait"));
  server.is_held = false;
  for (auto& reply : replies) EXPECT_EQ(reply.get().status, 200);
  EXPECT_EQ(server.post(R"({"prompt": "a"})").status, 200);
}

TEST(ImageRoute, EndsTheDrawingOfAClientThatLeaves) {
  PictureServer server;
  server.is_held = true;
  std::optional<http_test::RawConnection> drawn, waits;
  const std::string request = TestService::request(kImages, R"({"prompt": "a"})");
  drawn.emplace(static_cast<int>(server.server.port())).send(request);
  ASSERT_TRUE(TestService::wait_for([&] { return server.load().running == 1; }));
  waits.emplace(static_cast<int>(server.server.port())).send(request);
  ASSERT_TRUE(TestService::wait_for([&] { return server.load().waiting == 1; }));
  waits.reset();
  EXPECT_TRUE(TestService::wait_for([&] { return server.load().waiting == 0; }));
  EXPECT_EQ(server.stopped, 0);
  drawn.reset();
  EXPECT_TRUE(TestService::wait_for([&] { return server.load().running == 0; }));
  EXPECT_EQ(server.stopped, 1);
}

TEST(ImageRoute, TellsTheClientOfAnError) {
  const PictureServer server;
  const http::Reply reply = server.post(R"({"prompt": "fail"})");
  EXPECT_EQ(reply.status, 500);
  EXPECT_THAT(reply.body, AllOf(HasSubstr("the model must not fail"), Not(HasSubstr("secret"))));
  EXPECT_EQ(server.post(R"({"prompt": "a"})").status, 200);
}

TEST(ImageRoute, RefusesOtherRoutesOnAModelThatDraws) {
  const PictureServer server;
  const std::vector<std::pair<std::string, std::string>> rows{{"/v1/completions", R"({"prompt": "x"})"},
                                                              {"/v1/chat/completions", R"({"messages": []})"},
                                                              {"/v1/embeddings", R"({"input": "x"})"},
                                                              {"/tokenize", R"({"prompt": "x"})"},
                                                              {"/detokenize", R"({"tokens": [1]})"}};
  for (const auto& [path, body] : rows) {
    const http::Reply reply = server.post(body, path);
    EXPECT_EQ(reply.status, 400) << path;
    EXPECT_THAT(reply.body, HasSubstr("the model tiny draws pictures: use /v1/images/generations")) << path;
  }
  EXPECT_EQ(server.get("/health").status, 200);
  EXPECT_THAT(server.get("/").body, AllOf(HasSubstr("The model draws pictures"), HasSubstr(kImages),
                                          HasSubstr("GET /metrics\n"), Not(HasSubstr("embeddings"))));
  const Json model = Json::parse(server.get("/v1/models").body)["data"][0];
  EXPECT_EQ(model["id"], "tiny");
  EXPECT_FALSE(model.contains("max_model_len"));
}

TEST(ImageRoute, NeedsAModelThatDraws) {
  const TestService text;
  const http::Reply reply = text.post(kImages, R"({"prompt": "a cat"})");
  EXPECT_EQ(reply.status, 400);
  EXPECT_THAT(reply.body, HasSubstr("the model tiny does not draw pictures: use /v1/chat/completions"));
}

}  // namespace
}  // namespace colossal::serve_test
