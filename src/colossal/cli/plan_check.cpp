#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/file.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/json_file.h"
#include "colossal/cli/auto_layout.h"
#include "colossal/cli/builtin_text.h"
#include "colossal/cli/local_world.h"
#include "colossal/cli/plan.h"
#include "colossal/cli/plan_run.h"
#include "colossal/cli/whole_program.h"
#include "colossal/comm/agreement.h"
#include "colossal/comm/launch/device.h"
#include "colossal/comm/launch/environment.h"
#include "colossal/memory/host_memory.h"
#include "colossal/models/shape_parts.h"
#include "colossal/ops/products/matmul.h"
#include "colossal/predict/check.h"
#include "colossal/predict/search.h"
#include "colossal/predict/step.h"
#include "colossal/run/data.h"
#include "colossal/run/program.h"
#include "colossal/train/rank_inputs.h"

namespace colossal::cli {
namespace {

constexpr int64_t kCheckedRanks = 64;  // the most ranks that `plan --check` starts
constexpr size_t kMaxClusterBytes = size_t{1} << 24;

static_assert(kCheckedRanks <= predict::kRecordedRanks);  // more ranks would share recorded steps

/// The folder of what a run makes before its data are opened, such as latents. It is beside the run's own, which a
/// check leaves as it is, and is removed in the end.
class PreparedFolder {
 public:
  PreparedFolder(std::string path, bool is_first) : path_(std::move(path)), is_first_(is_first) {}
  ~PreparedFolder() {
    std::error_code ignored;
    if (is_first_) std::filesystem::remove_all(path_, ignored);
  }
  PreparedFolder(const PreparedFolder&) = delete;
  PreparedFolder& operator=(const PreparedFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
  bool is_first_;
};

/// Returns a path beside the folder of a run that no earlier check and no run of the user has.
std::string prepared_path(std::string run) {
  while (run.size() > 1 && run.ends_with('/')) run.pop_back();
  std::string path;
  std::error_code ignored;
  int64_t number = static_cast<int64_t>(::getpid());
  do path = concat(run, ".check-", number++);
  while (std::filesystem::exists(path, ignored));
  return path;
}

/// Makes all ranks use the library of products that rank 0 measures as faster, as `colossal train` does.
void agree_on_products(comm::Group& everyone, const std::string& matmul) {
  const bool is_first = everyone.rank() == 0;
  comm::agree(everyone, at::kCPU, [&] {
    if (is_first) ops::set_matmul(ops::choose_matmul(matmul));
  });
  const std::string code = is_first ? std::to_string(ops::matmul_choice().encode()) : "";
  ops::set_matmul(ops::MatmulChoice::decode(std::stoll(comm::broadcast_text(everyone, at::kCPU, 0, code))));
}

/// A run::ClusterChoice for other processes and ranks.
struct FoundCluster {
  std::string name, profile, note;  // the profile is TOML

  void fields(Fields& f) {
    f.member("name", name);
    f.member("profile", profile);
    f.member("note", note);
  }
};

std::string cluster_text(const run::ClusterChoice& cluster) {
  return json_line(
      to_json_object(FoundCluster{cluster.profile.name, plan::profile_to_toml(cluster.profile), cluster.note}));
}

/// Returns the hardware that the starting process found, or else rank 0, on all ranks: a measurement by each rank would
/// disturb the others.
run::ClusterChoice shared_cluster(comm::Group& everyone, const PlanWishes& wishes, const run::Config& config) {
  std::string text;
  comm::agree(everyone, at::kCPU, [&] {
    if (everyone.rank() != 0) return;
    text = wishes.found_cluster.empty() ? cluster_text(cluster_of_plan(wishes, config.run))
                                        : read_file(wishes.found_cluster, kMaxClusterBytes);
  });
  const auto object = parse_json_object(comm::broadcast_text(everyone, at::kCPU, 0, text), "the found cluster", "plan");
  const auto found = read_stored<FoundCluster>(object, "plan");
  return {plan::parse_profile(found.profile, found.name), found.note};
}

/// Returns true if a number differs that must be equal. Called on rank 0.
bool print_check(const PlanWishes& wishes, const PlannedRun& planned,
                 const std::vector<predict::CountedStep>& counted) {
  const plan::Cluster cluster = predict::cluster_of(planned.config.parallel.ranks(), planned.profile);
  const predict::RecordedRoles roles = predict::record_roles(planned, cluster);
  plan::Prediction prediction = predict::predict_step(planned, roles, cluster);
  if (!prediction.fits) prediction.remedies = predict::remedies(planned, cluster);
  predict::add_models(prediction, planned);
  add_notes(planned, prediction);
  const predict::Check check = predict::compare(predict::steps_of(roles, prediction), counted,
                                                planned.models.main().shape.part<models::MixtureSizes>().experts > 0);
  if (wishes.json)
    std::printf("%s\n", predict::to_json(prediction, check).c_str());
  else
    std::printf("%s\n%s", plan::to_text(prediction).c_str(), predict::to_text(check).c_str());
  std::fflush(stdout);
  return check.differs();
}

int check_as_rank(const PlanWishes& wishes, const run::Config& given, const run::Program& program) {
  ignore_broken_pipes();
  memory::keep_host_memory();
  const auto world = join_run(given.run, comm::cuda_devices());
  say_stalls(*world);
  if (given.memory.has_tiers()) memory::limit_host_memory(static_cast<size_t>(given.memory.device));
  const auto everyone = train::group_of_all(*world);
  const run::ClusterChoice cluster = shared_cluster(*everyone, wishes, given);
  std::optional<PlannedRun> planned;
  comm::agree(*everyone, at::kCPU, [&] { planned = resolve_plan(given, cluster, &program); });
  run::Config& config = planned->config;
  train::require_same(*everyone, train::program_inputs());
  train::require_same(*everyone, train::config_inputs(config));
  const bool is_first = everyone->rank() == 0;
  const std::string beside = is_first ? prepared_path(config.run.folder) : "";
  const PreparedFolder folder(comm::broadcast_text(*everyone, at::kCPU, 0, beside), is_first);
  run::Config prepared = config;
  prepared.run.folder = folder.path();
  run::prepare_data(prepared, program, *world, {});
  run::RunData data;
  comm::agree(*everyone, at::kCPU, [&] {
    const auto busy = world->busy("opening the data");
    const at::Device device = comm::choose_device(config.run.device, world->local_rank());
    data = run::open_data(prepared, program, builtin_text(),
                          static_cast<int>(config.parallel.replica_of(world->rank())), device);
    config.model = data.model;
    data.objective.write_keys(config);
    planned->models = train::models_of(config, data);
  });
  agree_on_products(*everyone, config.run.matmul);
  const auto counted =
      predict::gather_steps(*everyone, predict::count_step(*world, *planned, [&] { return data.training->next(); }));
  bool differs = false;
  comm::agree(*everyone, at::kCPU, [&] {
    const auto busy = world->busy("predicting the step");
    if (world->rank() == 0) differs = print_check(wishes, *planned, counted);
  });
  return comm::sum(*everyone, differs ? 1 : 0) > 0 ? 1 : 0;  // all ranks end in the same way
}

}  // namespace

int plan_check(const PlanWishes& wishes, const run::Program* program) {
  const run::Config config = given_plan(wishes, program);
  const int64_t ranks = config.parallel.ranks();
  require(ranks <= kCheckedRanks, "plan", "--check trains on at most ", kCheckedRanks, " ranks: got ", ranks,
          "; leave --check out, or check a smaller layout with --ranks");
  if (comm::read_environment(comm::process_variables()).launcher != comm::Launcher::None)
    return with_ranks(ranks, "plan", wishes.arguments,
                      [&] { return check_as_rank(wishes, config, whole_program(program)); });
  // A single rank is a process of its own, too: the memory of this one includes what the measurement took.
  const LayoutFile file(cluster_text(cluster_of_plan(wishes, config.run)));
  Arguments words{"plan"};
  words.insert(words.end(), wishes.arguments.begin(), wishes.arguments.end());
  words.insert(words.end(), {kFoundClusterFlag, file.path()});
  return start_ranks(ranks, words);
}

}  // namespace colossal::cli
