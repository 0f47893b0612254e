//! The sockets of the kubelet and of device plugins.

use tokio::net::UnixListener;
use tonic::service::Routes;

use super::{SimError, SimKubelet, service};
use crate::proto::{v1, v1alpha1};
use crate::serve::Serving;
use crate::sync::lock;

impl SimKubelet {
    /// Binds a temporary name and renames it, so that inotify reports the final name as moved, never as
    /// created.
    pub(super) fn listen(&self) -> Result<(), SimError> {
        let path = self.socket();
        if let Some(directory) = path.parent() {
            let explain = |source| SimError { path: directory.to_owned(), source };
            std::fs::create_dir_all(directory).map_err(explain)?;
        }
        let number = {
            let state = &mut *self.shared.lock();
            state.temporary_files += 1;
            state.temporary_files
        };
        let temporary = path.with_file_name(format!(".{number}"));
        let explain = |source| SimError { path: path.clone(), source };
        // An earlier kubelet in this directory may have left one behind.
        let _ = std::fs::remove_file(&temporary);
        let listener = UnixListener::bind(&temporary).map_err(explain)?;
        std::fs::rename(&temporary, &path).map_err(explain)?;
        let service = service::Service(self.shared.clone());
        let v1 = v1::pod_resources_lister_server::PodResourcesListerServer::new(service.clone());
        let v1alpha1 = v1alpha1::pod_resources_lister_server::PodResourcesListerServer::new(service);
        let routes = Routes::new(v1).add_service(v1alpha1).into_axum_router();
        let shared = self.shared.clone();
        let service =
            tower::service_fn(move |request| service::respond(shared.clone(), routes.clone(), request));
        let serving = Serving::start(listener, service);
        *lock(&self.shared.server) = Some(serving.control.clone());
        *lock(&self.serving) = Some(serving);
        Ok(())
    }

    /// Opens the kubelet's registration socket and one socket for each registered plugin.
    pub(super) fn open_plugin_sockets(&self) -> Result<(), SimError> {
        let directory = self.shared.root.join("device-plugins");
        let mut wanted = vec![directory.join("kubelet.sock")];
        {
            let state = self.shared.lock();
            let registered = state.model.devices.plugins.iter().filter(|(_, plugin)| plugin.registered);
            wanted.extend(
                registered.map(|(name, _)| directory.join(format!("{}.sock", name.replace('/', "_")))),
            );
        }
        let sockets = &mut *lock(&self.plugin_sockets);
        sockets.retain(|path, _| wanted.contains(path) || std::fs::remove_file(path).is_err());
        for path in wanted.into_iter().filter(|path| !sockets.contains_key(path)).collect::<Vec<_>>() {
            let _ = std::fs::remove_file(&path);
            let listener = std::os::unix::net::UnixListener::bind(&path)
                .map_err(|source| SimError { path: path.clone(), source })?;
            sockets.insert(path, listener);
        }
        Ok(())
    }
}
