#include "colossal/serve/local_drawer.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/comm/mesh.h"
#include "colossal/diffusion/drawer.h"
#include "colossal/diffusion/pipeline_parts.h"
#include "colossal/distributed/config.h"
#include "colossal/serve/local_host.h"

namespace colossal::serve {

void LocalDrawerOptions::fields(Fields& f) {
  model.source_fields(f);
  model.weight_fields(f);
  other.fields(f);
}

LocalDrawerOptions read_local_drawer_options(const std::string& json) {
  LocalDrawerOptions options;
  const std::vector<std::string> given = read_json(parse_ordered_json(json, "the options", "draw"), options, "draw");
  const std::string unused = options.model.check(
      [&](const char* name) { return std::find(given.begin(), given.end(), name) != given.end(); }, false);
  require(unused.empty(), "draw", unused);
  return options;
}

struct LocalDrawer::Host : LocalHost {
  explicit Host(LocalDrawerOptions options_) : options(std::move(options_)) {}

  const LocalDrawerOptions options;
  // Set by the thread before the constructor of LocalDrawer returns.
  run::PipelineSource source;
  std::vector<std::string> notices;

  void run(comm::World& world);
};

void LocalDrawer::Host::run(comm::World& world) {
  const distributed::ParallelConfig layout;
  comm::Mesh mesh(world, layout.axes());
  const run::Program& program = run::built_in();
  source = diffusion::find_pipeline(options.model.from, program, "draw", "", options.other);
  run::Loading loading = options.model.loading();
  loading.tokenizer = "none";
  loading.control = source.control;
  loading.image_prompt = source.image_prompt;
  const ModelAndDraft loaded = load_with_draft(options.model, loading, mesh, layout, &program);
  const at::Device device = loaded.model.model->parameters().options().device;
  diffusion::PipelineParts parts(
      source, world, device,
      {{.dtype = loading.dtype, .uses_average = loading.uses_average}, loading.memory.has_tiers()}, program);
  diffusion::Drawer drawer(source, *loaded.model.model, parts, mesh, diffusion::checksum_of_model(source.model));
  notices = loaded.model.notices;
  for (std::string& notice : parts.take_notices()) notices.push_back(std::move(notice));
  DrawingLoop own(world, mesh,
                  {.draw =
                       [&](const auto& wanted, const auto& given, const auto& take) {
                         drawer.draw(wanted, given, take);
                         return parts.take_notices();
                       },
                   .max_waiting = std::numeric_limits<int64_t>::max()});
  serve(own);
}

/// The state that the drawer's thread and the readers of a drawing share.
struct LocalDrawing::State {
  explicit State(std::shared_ptr<LocalDrawer::Host> host_) : host(std::move(host_)) {}

  const std::shared_ptr<LocalDrawer::Host> host;
  Ticket ticket = 0;  // set before a reader has the drawing
  std::mutex mutex;   // guards the members below
  std::condition_variable changed;
  std::optional<Drawn> drawn;
  bool has_ended = false;

  void end(std::optional<Drawn> result) {
    const std::lock_guard lock(mutex);
    if (result) drawn = std::move(result);
    has_ended = true;
    changed.notify_all();
  }
};

LocalDrawing::LocalDrawing(std::shared_ptr<State> state) : state_(std::move(state)) {}

LocalDrawing::~LocalDrawing() { cancel(); }

std::optional<Drawn> LocalDrawing::next(std::chrono::milliseconds timeout) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  if (!s.changed.wait_for(lock, timeout, [&] { return s.has_ended; })) return {};
  require(s.drawn.has_value(), "draw",
          "the pictures were not drawn, because the drawer was closed or they were cancelled");
  if (s.drawn->error) std::rethrow_exception(s.drawn->error);
  return std::exchange(s.drawn, {});
}

void LocalDrawing::cancel() { state_->host->cancel(state_->ticket); }

LocalDrawer::LocalDrawer(LocalDrawerOptions options) : host_(std::make_shared<Host>(std::move(options))) {
  host_->start([host = host_.get()](comm::World& world) { host->run(world); });
}

LocalDrawer::~LocalDrawer() { close(); }

void LocalDrawer::close() { host_->close(); }

diffusion::DrawOptions LocalDrawer::options(const std::string& json, const diffusion::GivenFiles& files) const {
  diffusion::DrawOptions options;
  read_json(parse_ordered_json(json, "the options", "draw"), options, "draw");
  if (!host_->source.reads_text() && options.drawn.empty()) options.drawn = std::exchange(options.prompt, "");
  options.check();
  diffusion::Drawer::check(host_->source, options, {.files = files});
  return options;
}

std::unique_ptr<LocalDrawing> LocalDrawer::draw(diffusion::DrawOptions options, diffusion::GivenFiles files) {
  const auto state = std::make_shared<LocalDrawing::State>(host_);
  // The loop destroys the function without a call if the drawing was cancelled or the drawer is closed.
  const std::shared_ptr<void> ending(nullptr, [state](void*) { state->end({}); });
  DrawingJob job{std::move(options), [state, ending](Drawn drawn) { state->end(std::move(drawn)); }, std::move(files)};
  const std::optional<Ticket> ticket = host_->give([&](ReplicaLoop& loop) { return loop.draw(std::move(job)); });
  require(ticket.has_value(), "draw", "the drawer must be open: got a drawing after close()");
  state->ticket = *ticket;
  return std::make_unique<LocalDrawing>(state);
}

const std::vector<std::string>& LocalDrawer::notices() const { return host_->notices; }

}  // namespace colossal::serve
